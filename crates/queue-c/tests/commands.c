/* Every command that a queue in C can prepare does what its words say, with each kind of pointers.
 *
 *     commands SOCKET
 */
#include <braid_queue.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define BLOCK 4096

static braid_queue *queue;

#define MUST(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s (errno %d, %s)\n", __LINE__, #what, errno, braid_queue_open_error()); \
            return 1; \
        } \
    } while (0)

/* Submits what was prepared and waits until `count` have ended; the statuses, added up. */
static int ended(int count, uint64_t tokens) {
    braid_done done[4];
    int sum = 0;
    if (braid_queue_submit(queue) < 0) return -1;
    while (count > 0) {
        int some = braid_queue_reap(queue, done, 4);
        if (some < 0 || (some == 0 && braid_queue_wait(queue, 1000000) < 0)) return -1;
        for (int at = 0; at < some; at++) {
            sum += done[at].status;
            tokens -= done[at].token;
        }
        count -= some;
    }
    return tokens == 0 ? sum : -2;
}

static int is_all(const unsigned char *bytes, unsigned char what, size_t count) {
    while (count > 0 && bytes[count - 1] == what) count--;
    return count == 0;
}

/* With data pointers of this kind, in a queue that gathers completions or not. */
static int all(const char *socket, uint32_t pointers, uint32_t gathered) {
    braid_queue_options options = {
        .kind = gathered > 0,
        .entries = 16,
        .coalesce_completions = gathered,
        .coalesce_us = gathered * 100,
        .pointers = pointers,
    };
    MUST(braid_queue_open(socket, &options, &queue) == 0);
    braid_memory memory, none;
    MUST(braid_queue_data(queue, &none) == -EINVAL);
    MUST(braid_queue_register(queue, 16 * BLOCK, &memory) == 0);
    unsigned char *bytes = memory.data;
    MUST(memory.len == 16 * BLOCK);
    for (int at = 0; at < 4; at++) memset(bytes + at * BLOCK, 'a' + at, BLOCK);

    /* Blocks 8 to 11 are d, c, b, a. */
    braid_piece back[4], whole = {memory.address + 8 * BLOCK, 4 * BLOCK};
    for (int at = 0; at < 4; at++) {
        back[at].address = memory.address + (3 - at) * BLOCK;
        back[at].len = BLOCK;
    }
    MUST(braid_queue_write(queue, 1, 8, 4, back, 4, 0, 5) >= 0 && ended(1, 5) == 0);
    MUST(braid_queue_read(queue, 1, 8, 4, &whole, 1, 6) >= 0 && ended(1, 6) == 0);
    for (int at = 0; at < 4; at++) MUST(is_all(bytes + (8 + at) * BLOCK, 'd' - at, BLOCK));

    /* Memory that is shorter or longer than the blocks is nobody's to use. */
    const char *refused = "the blocks have 4096 bytes and the pieces of memory 100: they must be as many";
    braid_piece wrong = {memory.address, 100}, both[2] = {back[0], wrong};
    MUST(braid_queue_write(queue, 1, 8, 1, &wrong, 1, 0, 5) == -EINVAL);
    MUST(strcmp(braid_queue_error(queue), refused) == 0);
    MUST(braid_queue_read(queue, 1, 8, 1, &wrong, 1, 5) == -EINVAL);
    MUST(braid_queue_read(queue, 1, 8, 1, &whole, 1, 5) == -EINVAL);
    MUST(braid_queue_read(queue, 1, 8, 2, both, 2, 5) == -EINVAL);
    MUST(braid_queue_write(queue, 1, 8, 1, NULL, 0, 0, 5) == -EINVAL);

    /* The second becomes zeroes, the third is deallocated, which is zeroes in memory. */
    MUST(braid_queue_write_zeroes(queue, 1, 9, 1, 0, 1) >= 0);
    braid_range range = {10, 1};
    MUST(braid_queue_deallocate(queue, 1, &range, 1, 2) >= 0);
    MUST(ended(2, 3) == 0);
    MUST(braid_queue_deallocate(queue, 1, &range, 0, 2) == -EINVAL);
    MUST(braid_queue_deallocate(queue, 1, &range, 257, 2) == -EINVAL);

    /* A read by hand: opcode, namespace, PRP entry 1, first block. */
    for (int at = 0; at < 4; at++) {
        uint64_t entry[8] = {2, 0, 0, memory.address + (12 + at) * BLOCK, 0, 8 + at, 0, 0};
        entry[0] |= (uint64_t)1 << 32;
        MUST(braid_queue_raw(queue, entry, 1 << at) >= 0);
    }
    MUST(ended(4, 15) == 0);
    MUST(is_all(bytes + 12 * BLOCK, 'd', BLOCK) && is_all(bytes + 13 * BLOCK, 0, 2 * BLOCK));
    MUST(is_all(bytes + 15 * BLOCK, 'a', BLOCK));
    uint64_t unknown[8] = {0x7f | (uint64_t)1 << 32};
    MUST(braid_queue_raw(queue, unknown, 3) >= 0 && ended(1, 3) > 0);

    /* A command that is taken back has a completion. */
    int cid = braid_queue_read(queue, 1, 8, 4, &whole, 1, 1);
    MUST(cid >= 0 && braid_queue_cancel(queue, cid, 2) >= 0 && ended(2, 3) >= 0);
    MUST(braid_queue_cancel(queue, 9999, 2) >= 0 && ended(1, 2) == 0);

    /* Nothing of that was for another namespace. */
    MUST(braid_queue_flush(queue, UINT32_MAX, 1) >= 0 && ended(1, 1) == 0);
    MUST(braid_queue_write_zeroes(queue, 2, 8, 1, 0, 1) >= 0 && ended(1, 1) > 0);
    braid_queue_close(queue);
    return 0;
}

int main(int count, char **words) {
    if (count < 2) return 2;
    for (uint32_t pointers = 0; pointers < 3; pointers++) {
        if (all(words[1], pointers, 0) != 0 || all(words[1], pointers, 4) != 0) return 1;
    }
    braid_queue_options wrong = {.pointers = 3};
    MUST(braid_queue_open(words[1], &wrong, &queue) == -EINVAL);
    puts("all commands");
    return 0;
}
