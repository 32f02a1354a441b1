/* A queue that goes from thread to thread, and then is used by two at once.
 *
 *     two_threads SOCKET [close]
 *
 * With close, one of them closes it.
 */
#include <braid_queue.h>

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static braid_queue *queue;

/* One flush from its begin to its end; whoever calls this is the queue's only user. */
static int flush(void) {
    braid_done done;
    if (braid_queue_flush(queue, 1, 7) < 0 || braid_queue_submit(queue) < 0) return 0;
    if (braid_queue_wait(queue, 60000000) != 1) return 0;
    return braid_queue_reap(queue, &done, 1) == 1 && done.status == 0 && done.token == 7;
}

static void *alone(void *unused) {
    (void)unused;
    return flush() ? queue : NULL;
}

/* Nothing is in flight, so it is in there for long. */
static void *asleep(void *unused) {
    (void)unused;
    braid_queue_wait(queue, 60000000);
    return NULL;
}

int main(int count, char **words) {
    if (count < 2) return 2;
    braid_queue_options options = {.kind = 1, .entries = 8, .data_bytes = 4096};
    if (braid_queue_open(words[1], &options, &queue) < 0) return 3;
    pthread_t thread;
    for (int turn = 0; turn < 3; turn++) {
        void *result;
        if (!flush()) return 4;
        pthread_create(&thread, NULL, alone, NULL);
        pthread_join(thread, &result);
        if (result != queue) return 5;
    }
    puts("from thread to thread");
    fflush(stdout);
    pthread_create(&thread, NULL, asleep, NULL);
    braid_done done;
    for (int turn = 0; turn < 30000; turn++) {
        usleep(1000);
        /* The other one has begun by then, or is late; it ends all the same. */
        if (count > 2 && turn < 1000) continue;
        if (count > 2) break;
        braid_queue_reap(queue, &done, 1);
    }
    if (count > 2) braid_queue_close(queue);
    puts("not noticed");
    return 0;
}
