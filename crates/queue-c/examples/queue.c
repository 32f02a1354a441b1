/* Writes a pattern through a hardware queue, reads it back and compares, then reads at random and
 * counts.
 *
 *     queue SOCKET [NSID [SECONDS]]
 */
#include <braid_queue.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEPTH 127
#define BLOCKS 1024 /* of the namespace, that are written; fewer if it has fewer */

static braid_queue *queue;

static void check(int result, const char *what) {
    if (result < 0) {
        fprintf(stderr, "%s: error %d: %s\n", what, -result, braid_queue_error(queue));
        exit(1);
    }
}

/* Ends the program if its output was lost. */
static void flush(void) {
    if (fflush(stdout) != 0) {
        perror("standard output");
        exit(1);
    }
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Called when no completion has come. A poller gets no event when the server dies, so this checks
 * now and then: the clock is read in one of many calls, and the kernel is asked ten times a second. */
static void nothing(void) {
    static unsigned looks;
    static double asked;
    if (++looks % 4096 != 0) return;
    double now = seconds();
    if (now - asked < 0.1) return;
    asked = now;
    check(braid_queue_wait(queue, 0), "wait");
}

/* One word of block `block`. */
static uint64_t word(uint64_t block, uint64_t at) {
    return (block + 1) * 0x9e3779b97f4a7c15u ^ at;
}

static void succeeded(const braid_done *done) {
    if (done->status == 0) return;
    char words[128];
    braid_status_text(done->status, words, sizeof words);
    fprintf(stderr, "a command failed: %s\n", words);
    exit(1);
}

/* Waits until a command has ended; all must succeed. Returns its token. */
static uint64_t next(void) {
    braid_done done;
    for (;;) {
        int count = braid_queue_reap(queue, &done, 1);
        check(count, "reap");
        if (count == 1) break;
        nothing();
    }
    succeeded(&done);
    return done.token;
}

int main(int count, char **words) {
    char *nsid_end = "", *duration_end = "";
    unsigned long nsid_word = count > 2 ? strtoul(words[2], &nsid_end, 10) : 1;
    double duration = count > 3 ? strtod(words[3], &duration_end) : 1.0;
    int is_nsid = *nsid_end == 0 && nsid_word > 0 && nsid_word < UINT32_MAX;
    int is_duration = *duration_end == 0 && duration >= 0.0 && duration <= 1e9;
    if (count < 2 || count > 4 || !is_nsid || !is_duration) {
        fprintf(stderr, "usage: %s SOCKET [NSID [SECONDS]]\n", words[0]);
        return 2;
    }
    uint32_t nsid = (uint32_t)nsid_word;
    braid_queue_options options = {.entries = DEPTH + 1, .data_bytes = DEPTH * 4096};
    int opened = braid_queue_open(words[1], &options, &queue);
    if (opened < 0) {
        fprintf(stderr, "no queue: %s\n", braid_queue_open_error());
        return 1;
    }
    braid_namespace shape;
    check(braid_queue_namespace(queue, nsid, &shape), "namespace");
    braid_memory memory;
    check(braid_queue_data(queue, &memory), "data");
    uint64_t blocks = shape.blocks < BLOCKS ? shape.blocks : BLOCKS;
    uint64_t *data = memory.data;
    uint64_t words_of_block = shape.block_bytes / 8;

    for (uint64_t block = 0; block < blocks; block++) {
        for (uint64_t at = 0; at < words_of_block; at++) data[at] = word(block, at);
        braid_piece piece = {memory.address, shape.block_bytes};
        check(braid_queue_write(queue, nsid, block, 1, &piece, 1, 0, block), "write");
        check(braid_queue_submit(queue), "submit");
        next();
    }
    for (uint64_t block = 0; block < blocks; block++) {
        memset(data, 0, shape.block_bytes);
        braid_piece piece = {memory.address, shape.block_bytes};
        check(braid_queue_read(queue, nsid, block, 1, &piece, 1, block), "read");
        check(braid_queue_submit(queue), "submit");
        next();
        for (uint64_t at = 0; at < words_of_block; at++) {
            if (data[at] != word(block, at)) {
                fprintf(stderr, "block %llu is wrong\n", (unsigned long long)block);
                return 1;
            }
        }
    }
    printf("verified %llu blocks of %u bytes\n", (unsigned long long)blocks, shape.block_bytes);
    flush();

    uint64_t done = 0, drawn = 1;
    double begun = seconds(), elapsed;
    for (uint64_t slot = 0; slot < DEPTH; slot++) {
        braid_piece piece = {memory.address + slot * 4096, shape.block_bytes};
        check(braid_queue_read(queue, nsid, slot % blocks, 1, &piece, 1, slot), "read");
    }
    check(braid_queue_submit(queue), "submit");
    do {
        braid_done ended[32];
        int reaped = braid_queue_reap(queue, ended, 32);
        check(reaped, "reap");
        for (int at = 0; at < reaped; at++) {
            uint64_t slot = ended[at].token;
            succeeded(&ended[at]);
            drawn = drawn * 6364136223846793005u + 1442695040888963407u;
            braid_piece piece = {memory.address + slot * 4096, shape.block_bytes};
            check(braid_queue_read(queue, nsid, (drawn >> 33) % blocks, 1, &piece, 1, slot), "read");
        }
        if (reaped) check(braid_queue_submit(queue), "submit");
        done += (uint64_t)reaped;
        elapsed = seconds() - begun;
        if (!reaped) nothing();
    } while (elapsed < duration);
    for (unsigned left = DEPTH; left > 0; left--) next();
    printf("%.0f IOPS, %u outstanding\n", (double)done / elapsed, DEPTH);
    flush();
    braid_queue_close(queue);
    return 0;
}
