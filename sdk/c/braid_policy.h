/* Programs that choose a path for each I/O of a braid volume: version 1 of docs/programs.md.
 *
 * A program defines `struct braid_context braid_context;` and `braid_select`, and exports both;
 * the other functions are optional. It has no clock, and needs no library.
 */
#ifndef BRAID_POLICY_H
#define BRAID_POLICY_H

#include <stdint.h>

#define BRAID_PATHS_MAX 64

/* Bit of braid_request.flags: the first call of an instance. It may allocate; its answer is not
 * used, and it should leave no trace. */
#define BRAID_WARM_UP 1u

/* Bits of braid_path.flags. */
#define BRAID_USABLE 1u
#define BRAID_OPTIMIZED 2u

enum braid_group { BRAID_READ, BRAID_WRITE, BRAID_OTHER };
enum braid_outcome { BRAID_GOOD, BRAID_FAILED, BRAID_DROPPED };

struct braid_request {
    uint32_t version;
    uint32_t flags;
    uint64_t now_ns;  /* only differences mean something */
    uint64_t source;  /* number of the reader; 0 in braid_complete, as the next */
    uint64_t address; /* first byte on the volume */
    uint32_t length;
    uint32_t group; /* enum braid_group */
    uint32_t count; /* of paths */
    uint32_t reserved[5];
    uint64_t words[8]; /* the program's own; they outlive a trap */
};

struct braid_path {
    uint32_t flags;
    uint32_t ana; /* 0 optimized, 1 non-optimized; others are not usable */
    uint32_t distance;
    uint32_t in_flight; /* of this core */
    uint32_t in_flight_elsewhere;
    uint32_t throughput; /* 0 to 100, as configured */
    uint32_t reserved[2];
    uint64_t words[4]; /* the program's own; they outlive a trap, and a reset sets them to 0 */
};

struct braid_context {
    struct braid_request request;
    struct braid_path paths[BRAID_PATHS_MAX];
} __attribute__((aligned(8)));

_Static_assert(sizeof(struct braid_request) == 128, "layout");
_Static_assert(sizeof(struct braid_path) == 64, "layout");

/* Of the program: braid fills it before each call. */
extern struct braid_context braid_context;

/* Returns the index of a usable path. */
int32_t braid_select(struct braid_request *request, struct braid_path *paths);
/* Of the request only group, length and time are known. */
void braid_complete(int32_t path, int64_t latency_ns, int32_t outcome,
                    struct braid_request *request);
void braid_tick(int64_t now_ns);
void braid_reset(int32_t path);

#endif
