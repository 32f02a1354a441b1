/* Hardware queues of braid, for C (docs/queues.md). Written by cbindgen; a test of crates/queue-c
 * compares it, and with BRAID_WRITE_HEADER=1 in its environment writes it anew. */

#ifndef BRAID_QUEUE_H
#define BRAID_QUEUE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 A queue that is open.
 */
typedef struct braid_queue braid_queue;

/*
 Parameters of a queue; all zero is a user_poll queue of 128 entries without data memory.
 */
typedef struct {
  /*
   0: user_poll, 1: user_irq.
   */
  uint32_t kind;
  /*
   Entries, 2 to 4096; one less can be in flight. 0: 128.
   */
  uint32_t entries;
  /*
   Data memory that the server makes, bytes; 0: none.
   */
  uint64_t data_bytes;
  /*
   Completions before an interrupt, while further commands are under way; 0: each.
   */
  uint32_t coalesce_completions;
  /*
   Microseconds after the first of them at the latest.
   */
  uint32_t coalesce_us;
  /*
   Data pointers: 0 as it fits, 1 PRP lists, 2 SGLs.
   */
  uint32_t pointers;
} braid_queue_options;

/*
 Properties of a namespace.
 */
typedef struct {
  /*
   Blocks.
   */
  uint64_t blocks;
  /*
   Bytes of a block.
   */
  uint32_t block_bytes;
  /*
   1: changes are refused.
   */
  uint32_t read_only;
} braid_namespace;

/*
 A part of registered memory, by its address in data pointers.
 */
typedef struct {
  /*
   First byte.
   */
  uint64_t address;
  /*
   Bytes.
   */
  uint32_t len;
} braid_piece;

/*
 Blocks to deallocate.
 */
typedef struct {
  /*
   First block.
   */
  uint64_t slba;
  /*
   Blocks.
   */
  uint32_t blocks;
} braid_range;

/*
 A command that has ended.
 */
typedef struct {
  /*
   As given with the command.
   */
  uint64_t token;
  /*
   DW0 and DW1 of the completion.
   */
  uint64_t result;
  /*
   Status as of NVMe, without the phase tag; 0: done.
   */
  uint16_t status;
} braid_done;

/*
 Counters of a queue.
 */
typedef struct {
  /*
   Looks at the completion queue, one for each entry that was looked at; those of
   braid_queue_wait and braid_queue_arm that found nothing among them.
   */
  uint64_t polls;
  /*
   Of these, those that found nothing.
   */
  uint64_t empty_polls;
  /*
   System calls: kicks, waits and what belongs to them.
   */
  uint64_t calls;
} braid_counts;

/*
 Properties of a queue.
 */
typedef struct {
  /*
   Its number, as `braid queue list` has it.
   */
  uint32_t number;
  /*
   0: user_poll, 1: user_irq.
   */
  uint32_t kind;
  /*
   Most commands in flight.
   */
  uint32_t depth;
  /*
   Commands in flight, those that were not submitted yet among them.
   */
  uint32_t in_flight;
  /*
   Largest transfer of one command, bytes.
   */
  uint32_t transfer_max;
  /*
   Namespaces of the server: their numbers are 1 to this.
   */
  uint32_t namespaces;
} braid_queue_facts;

/*
 Memory that commands may use.
 */
typedef struct {
  /*
   Where it lies in this process.
   */
  void *data;
  /*
   Bytes.
   */
  uint64_t len;
  /*
   Its address in data pointers.
   */
  uint64_t address;
} braid_memory;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Opens a queue of the server whose socket is at `path`; `options` may be null. On success 0, and
 `*opened` is the queue; else a negative errno, and `braid_queue_open_error` has the words.

 # Safety
 `path` is a string that ends with a zero; `options` is null or valid; `opened` is valid.
 */
int braid_queue_open(const char *path, const braid_queue_options *options, braid_queue **opened);

/*
 Words for the last `braid_queue_open` or `braid_queue_receive` of this thread that gave no
 queue, until its next one.
 */
const char *braid_queue_open_error(void);

/*
 Gives the queue back, also one whose server hangs. Of the commands in flight, those that it has
 not begun are not executed any more, also if it stands still now and goes on later. Those that
 it has begun end unheard, and may yet write to memory files of the caller's
 (`braid_queue_register_file`): where that matters, reap first.

 # Safety
 From `braid_queue_open`, not closed yet, or null. Neither it nor its memory is used afterwards.
 */
void braid_queue_close(braid_queue *queue);

/*
 Words for the last error of this queue, until the next call.

 # Safety
 From `braid_queue_open`, not closed yet; so for all that follow.
 */
const char *braid_queue_error(braid_queue *queue);

/*
 Returns the properties of namespace `nsid`: 0, or a negative errno.

 # Safety
 As for all; `namespace_` is valid.
 */
int braid_queue_namespace(braid_queue *queue, uint32_t nsid, braid_namespace *namespace_);

/*
 Prepares a read of `blocks` blocks from `slba` into `count` pieces of registered memory. As all
 that prepare: the command's identifier, or -EAGAIN (full: reap first), or -EINVAL (what can't
 be: so where the pieces together have more bytes than the blocks, or fewer).

 # Safety
 As for all; `pieces` has `count` of them.
 */
int braid_queue_read(braid_queue *queue,
                     uint32_t nsid,
                     uint64_t slba,
                     uint32_t blocks,
                     const braid_piece *pieces,
                     size_t count,
                     uint64_t token);

/*
 Prepares a write; `fua` not 0: durable when it has ended.

 # Safety
 As for all; `pieces` has `count` of them.
 */
int braid_queue_write(braid_queue *queue,
                      uint32_t nsid,
                      uint64_t slba,
                      uint32_t blocks,
                      const braid_piece *pieces,
                      size_t count,
                      int fua,
                      uint64_t token);

/*
 Prepares a flush; `nsid` ffffffffh: of all namespaces.

 # Safety
 As for all.
 */
int braid_queue_flush(braid_queue *queue, uint32_t nsid, uint64_t token);

/*
 Prepares writing zeroes; `deallocate` not 0: the blocks may be deallocated.

 # Safety
 As for all.
 */
int braid_queue_write_zeroes(braid_queue *queue,
                             uint32_t nsid,
                             uint64_t slba,
                             uint32_t blocks,
                             int deallocate,
                             uint64_t token);

/*
 Prepares deallocating 1 to 256 ranges.

 # Safety
 As for all; `ranges` has `count` of them.
 */
int braid_queue_deallocate(braid_queue *queue,
                           uint32_t nsid,
                           const braid_range *ranges,
                           size_t count,
                           uint64_t token);

/*
 Prepares any command of 64 bytes; its identifier is put in. Whether its data pointer leads to as
 many bytes as it moves is the caller's to know.

 # Safety
 As for all; 64 bytes at `entry`.
 */
int braid_queue_raw(braid_queue *queue, const void *entry, uint64_t token);

/*
 Prepares asking for the command with this identifier to end soon. It ends in any case.

 # Safety
 As for all.
 */
int braid_queue_cancel(braid_queue *queue, uint16_t cid, uint64_t token);

/*
 Submits what was prepared: 0, or a negative errno. No system call while the server is awake.

 # Safety
 As for all.
 */
int braid_queue_submit(braid_queue *queue);

/*
 Up to `most` commands that have ended: how many, or a negative errno. Never enters the kernel.
 After an error that came behind some of them their number is returned, and the error by the next
 call.

 # Safety
 As for all; room for `most` at `done`.
 */
int braid_queue_reap(braid_queue *queue, braid_done *done, size_t most);

/*
 Sleeps until commands have ended (1) or the time is over (0); a negative errno if the server is
 gone. A user_poll queue looks, and does not sleep.

 # Safety
 As for all.
 */
int braid_queue_wait(braid_queue *queue, uint64_t at_most_us);

/*
 The descriptor that becomes readable when commands have ended after `braid_queue_arm`, for epoll
 or io_uring; -EINVAL of a user_poll queue. It is the queue's: don't close it.

 # Safety
 As for all.
 */
int braid_queue_interrupt(braid_queue *queue);

/*
 Asks for one interrupt when commands have ended: 1; or 0 if some have already; -EINVAL of a
 user_poll queue, which has none.

 # Safety
 As for all.
 */
int braid_queue_arm(braid_queue *queue);

/*
 A descriptor to be watched for POLLRDHUP, with epoll for EPOLLRDHUP: then the server has ended
 or has given up this queue; or a negative errno. POLLIN is no proof of that: a late answer to a
 request that was given up causes it too. The caller owns it and closes it.

 # Safety
 As for all.
 */
int braid_queue_end_event(braid_queue *queue);

/*
 Returns the counters since the queue was opened.

 # Safety
 As for all; `counts` is valid.
 */
void braid_queue_count(braid_queue *queue, braid_counts *counts);

/*
 Returns the properties of the queue, and how much is in flight.

 # Safety
 As for all; `facts` is valid.
 */
void braid_queue_show(braid_queue *queue, braid_queue_facts *facts);

/*
 Words for the status of a command that has ended, as `snprintf` writes them: at most `size`
 bytes with the zero at their end; how long they are without it.

 # Safety
 Room for `size` bytes at `text`, which may be null where that is 0.
 */
size_t braid_status_text(uint16_t status, char *text, size_t size);

/*
 The memory that the server made for the queue: 0, or -EINVAL if it was not asked for.

 # Safety
 As for all; `memory` is valid.
 */
int braid_queue_data(braid_queue *queue, braid_memory *memory);

/*
 Registers more memory, which is made here: 0, or a negative errno. It is this process's until
 it is unregistered or the queue is closed.

 # Safety
 As for all; `memory` is valid.
 */
int braid_queue_register(braid_queue *queue, uint64_t len, braid_memory *memory);

/*
 Registers memory of the caller's: the first `len` bytes of a memory file that can't shrink
 (F_SEAL_SHRINK; -EPERM if it can). The descriptor stays the caller's. 0, or a negative errno.

 # Safety
 As for all; `memory` is valid.
 */
int braid_queue_register_file(braid_queue *queue,
                              int descriptor,
                              uint64_t len,
                              braid_memory *memory);

/*
 Lets go of registered memory, by its address in data pointers: 0, or a negative errno (-ENOENT:
 there is no such memory). The server keeps it until its last command has ended; here it is gone,
 so nothing may touch it afterwards.

 # Safety
 As for all; that memory is not used any more.
 */
int braid_queue_unregister(braid_queue *queue, uint64_t address);

/*
 Passes the queue, with the memory that the server made for it, to the receiver at the other end
 of the Unix socket. -EAGAIN: commands are in flight, and nothing has happened. Else the queue is
 closed here: 0, it is the receiver's; or a negative errno, `braid_queue_open_error` has the
 message, and the queue has no owner any more.

 # Safety
 As for all; `socket` is open.
 */
int braid_queue_send(braid_queue *queue, int socket);

/*
 Receives a queue that another process passes on; waits for it. On success 0, and `*opened` is
 the queue; else a negative errno, and `braid_queue_open_error` has the words.

 # Safety
 `socket` is open; `opened` is valid.
 */
int braid_queue_receive(int socket, braid_queue **opened);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BRAID_QUEUE_H */
