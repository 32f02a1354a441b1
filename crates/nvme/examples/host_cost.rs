//! Instructions that the host machine spends on one 4 KiB read, payload and driver excluded.
//!
//! ```text
//! cargo build --profile dist -p braid-nvme --example host_cost
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no \
//!     --toggle-collect='host_cost::measured*' \
//!     target/dist/examples/host_cost [success] [digests]
//! ```
//! The count that callgrind prints, divided by the reads that this program prints, is the result.
use nvme::host::{Command, Digests, HostIdentity, IoQueue, IoQueueConfig, QueueEvent};
use nvme::wire::Cqe;
use nvme::wire::cqe::SQHD_NONE;
use nvme::wire::pdu::{DataHeader, Framing, IcResp, PduType, flags};

const ROUNDS: u32 = 1_000;
const BATCH: u32 = 32;
const BLOCKS: u32 = 8;

fn config(digests: Digests) -> IoQueueConfig {
    IoQueueConfig {
        host: HostIdentity {
            nqn: "nqn.host".into(),
            id: [1; 16],
        },
        subsystem: "nqn.subsystem".into(),
        cntlid: 1,
        qid: 1,
        entries: 129,
        digests,
        disable_sq_flow_control: true,
        in_capsule_max: 8192,
        timeout_ns: 1,
    }
}

/// A queue that is ready.
fn connect(digests: Digests, framing: &Framing) -> IoQueue {
    let mut queue = IoQueue::new(config(digests));
    let mut out = Vec::new();
    queue.handle_connected(0);
    queue.poll_transmit(&mut out, 0);
    let mut answer = Vec::new();
    let (header_digest, data_digest) = (digests.header, digests.data);
    IcResp {
        pfv: 0,
        cpda: 0,
        header_digest,
        data_digest,
        maxh2cdata: 131_072,
    }
    .emit(&mut answer);
    queue.handle_bytes(&answer, 0);
    out.clear();
    queue.poll_transmit(&mut out, 0);
    answer.clear();
    let cid = u16::from_le_bytes([out[10], out[11]]);
    let cqe = Cqe {
        cid,
        sqhd: SQHD_NONE,
        result: 1,
        ..Cqe::default()
    };
    framing.whole(&mut answer, PduType::CapsuleResp, 0, &cqe.emit(), &[]);
    queue.handle_bytes(&answer, 0);
    assert_eq!(queue.poll_event(), Some(QueueEvent::Ready));
    queue
}

#[inline(never)]
fn measured_submit(queue: &mut IoQueue, out: &mut Vec<u8>) {
    for token in 0..BATCH {
        let command = Command::read(1, u64::from(token) * 8, BLOCKS, 9, false, token);
        let _ = queue.submit(&command, 0);
    }
    while queue.poll_transmit(out, 0).is_some() {}
}

#[inline(never)]
fn measured_receive(queue: &mut IoQueue, mut bytes: &[u8]) -> u32 {
    while !bytes.is_empty() {
        let used = queue.handle_bytes(bytes, 0);
        bytes = &bytes[used..];
        while let Some(place) = queue.placement() {
            // The driver would move the payload here, and continue its CRC.
            let (_, rest) = bytes.split_at(place.len as usize);
            queue.handle_payload(place.len, ZEROES_CRC, 0);
            bytes = rest;
        }
    }
    let mut done = 0;
    while let Some(QueueEvent::Completed(end)) = queue.poll_event() {
        done += u32::from(end.status.is_success());
    }
    done
}

/// CRC32C of 4096 zeroes.
const ZEROES_CRC: u32 = 0x98f9_4189;

/// Answers of a controller to the capsules in `sent`.
fn answer(sent: &[u8], framing: &Framing, success: bool, out: &mut Vec<u8>) {
    let pdu_len = if framing.header_digest { 76 } else { 72 };
    for capsule in sent.chunks_exact(pdu_len) {
        let cid = u16::from_le_bytes([capsule[10], capsule[11]]);
        let header = DataHeader {
            cccid: cid,
            ttag: 0,
            offset: 0,
            length: 4096,
        }
        .emit();
        let flag = flags::LAST | if success { flags::SUCCESS } else { 0 };
        framing.whole(out, PduType::C2hData, flag, &header, &[0; 4096]);
        if !success {
            let cqe = Cqe {
                cid,
                sqhd: SQHD_NONE,
                ..Cqe::default()
            };
            framing.whole(out, PduType::CapsuleResp, 0, &cqe.emit(), &[]);
        }
    }
}

fn main() {
    let has = |word: &str| std::env::args().any(|arg| arg == word);
    let digests = Digests {
        header: has("digests"),
        data: has("digests"),
    };
    let framing = Framing {
        header_digest: digests.header,
        data_digest: digests.data,
        alignment: 4,
    };
    let mut queue = connect(digests, &framing);
    let (mut sent, mut received, mut done) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        sent.clear();
        received.clear();
        measured_submit(&mut queue, &mut sent);
        answer(&sent, &framing, has("success"), &mut received);
        done += measured_receive(&mut queue, &received);
    }
    assert_eq!(done, ROUNDS * BATCH);
    println!("{done} reads");
}
