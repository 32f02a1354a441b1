/* The usable path with the fewest I/Os in flight, optimized before non-optimized: as braid's
 * queue-depth. */
#include "braid_policy.h"

struct braid_context braid_context;

int32_t braid_select(struct braid_request *request, struct braid_path *paths) {
    int32_t best = -1;
    uint64_t least = UINT64_MAX;
    for (uint32_t at = 0; at < request->count; at++) {
        const struct braid_path *path = &paths[at];
        uint64_t depth = (uint64_t)path->in_flight + path->in_flight_elsewhere;
        if (!(path->flags & BRAID_OPTIMIZED))
            depth += (uint64_t)1 << 40;
        if ((path->flags & BRAID_USABLE) && depth < least) {
            best = (int32_t)at;
            least = depth;
        }
    }
    return best;
}
