/* Further functions of a queue in C: memory of the caller's, a descriptor for epoll, passing on,
 * messages.
 *
 *     whole SOCKET
 */
#include <braid_queue.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define BLOCK 4096

static braid_queue *queue;

#define MUST(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s (errno %d, %s)\n", __LINE__, #what, errno, braid_queue_open_error()); \
            return 1; \
        } \
    } while (0)

/* Submits what was prepared and waits for its end by epoll; its status. */
static int ended(int epoll) {
    braid_done done;
    struct epoll_event event;
    if (braid_queue_submit(queue) < 0) return -1;
    while (braid_queue_reap(queue, &done, 1) != 1) {
        if (braid_queue_arm(queue) == 1 && epoll_wait(epoll, &event, 1, 60000) != 1) return -1;
    }
    return done.status;
}

int main(int count, char **words) {
    if (count < 2) return 2;
    braid_queue_options options = {.kind = 1, .entries = 8, .data_bytes = BLOCK};
    MUST(braid_queue_open("/nowhere/at/all", &options, &queue) == -ENOENT);
    MUST(strstr(braid_queue_open_error(), "/nowhere/at/all"));
    options.kind = 7;
    MUST(braid_queue_open(words[1], &options, &queue) == -EINVAL);
    MUST(strstr(braid_queue_open_error(), "option"));
    options.kind = 0;
    MUST(braid_queue_open(words[1], &options, &queue) == 0);
    MUST(braid_queue_arm(queue) == -EINVAL && braid_queue_interrupt(queue) == -EINVAL);
    MUST(strstr(braid_queue_error(queue), "has no interrupt"));
    braid_queue_close(queue);
    options.kind = 1;
    MUST(braid_queue_open(words[1], &options, &queue) == 0);

    /* Memory of the caller's has to be sealed. */
    int file = memfd_create("own", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    MUST(ftruncate(file, BLOCK) == 0);
    braid_memory own;
    MUST(braid_queue_register_file(queue, file, BLOCK, &own) == -EPERM);
    MUST(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    MUST(braid_queue_register_file(queue, file, BLOCK, &own) == 0);
    MUST(braid_queue_register_file(queue, -1, BLOCK, &own) == -EINVAL);
    MUST(pwrite(file, "of the caller's", 15, 0) == 15);
    MUST(memcmp(own.data, "of the caller's", 15) == 0);

    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, braid_queue_interrupt(queue), &event) == 0);
    braid_piece piece = {own.address, BLOCK};
    MUST(braid_queue_write(queue, 1, 3, 1, &piece, 1, 0, 1) >= 0 && ended(epoll) == 0);
    MUST(braid_queue_wait(queue, 0) == 0);
    braid_counts counts;
    braid_queue_count(queue, &counts);
    MUST(counts.polls > counts.empty_polls && counts.calls > 0);

    /* Unregistered memory is no memory for commands any more. */
    MUST(braid_queue_unregister(queue, own.address) == 0);
    MUST(braid_queue_read(queue, 1, 3, 0, &piece, 1, 2) == -EINVAL);
    MUST(braid_queue_unregister(queue, own.address) == -ENOENT);
    MUST(strstr(braid_queue_error(queue), "no memory is registered at address 0x"));
    MUST(braid_queue_read(queue, 1, 3, 1, &piece, 1, 2) >= 0);
    int status = ended(epoll);
    char words_of[128], cut[5];
    MUST(status > 0 && braid_status_text(status, words_of, sizeof words_of) == strlen(words_of));
    MUST(braid_status_text(status, cut, sizeof cut) == strlen(words_of));
    MUST(strlen(cut) == 4 && strncmp(cut, words_of, 4) == 0);
    MUST(braid_status_text(status, NULL, 0) == strlen(words_of));

    /* The receiver has the memory with it. */
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    MUST(braid_queue_flush(queue, 1, 3) >= 0);
    braid_queue_facts facts;
    braid_queue_show(queue, &facts);
    MUST(facts.kind == 1 && facts.depth == 7 && facts.in_flight == 1);
    MUST(facts.transfer_max == 1 << 20 && facts.namespaces == 1 && facts.number > 0);
    MUST(braid_queue_send(queue, pair[0]) == -EAGAIN);
    MUST(ended(epoll) == 0);
    MUST(braid_queue_send(queue, pair[0]) == 0);
    MUST(braid_queue_receive(pair[1], &queue) == 0);
    braid_memory data;
    MUST(braid_queue_data(queue, &data) == 0);
    piece.address = data.address;
    epoll = epoll_create1(EPOLL_CLOEXEC);
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, braid_queue_interrupt(queue), &event) == 0);
    MUST(braid_queue_read(queue, 1, 3, 1, &piece, 1, 4) >= 0 && ended(epoll) == 0);
    MUST(memcmp(data.data, "of the caller's", 15) == 0);
    MUST(write(pair[0], "this is no queue, that is so", 28) == 28);
    braid_queue *none = NULL;
    MUST(braid_queue_receive(pair[1], &none) < 0 && none == NULL);

    /* The server says when it ends. */
    struct pollfd end = {braid_queue_end_event(queue), POLLRDHUP, 0};
    MUST(end.fd >= 0 && poll(&end, 1, 0) == 0);
    puts("all of it");
    fflush(stdout);
    MUST(poll(&end, 1, 60000) == 1 && end.revents & POLLRDHUP);
    MUST(braid_queue_wait(queue, 0) < 0);
    puts("it has ended");
    close(end.fd);
    braid_queue_close(queue);
    return 0;
}
