//! Memory that is not as long as what a command moves is nobody's to use.
use crate::common::{Stage, finish};
use queue::{Form, Options, Queue, SubmitError};

#[test]
fn t16_pieces_that_are_not_as_long_as_the_blocks_are_refused_in_every_form() {
    let stage = Stage::plain();
    for form in [Form::Auto, Form::Prp, Form::Sgl] {
        let options = Options {
            form,
            ..Options::default()
        };
        let mut queue = Queue::open(&stage.path(), &options).unwrap();
        let data = queue.data().unwrap().clone();
        let of = |lens: &[u32]| -> Vec<_> {
            let pages = (0..).step_by(4096);
            pages
                .zip(lens)
                .map(|(at, len)| data.piece(at, *len))
                .collect()
        };
        for (blocks, lens) in [
            (1, &[100][..]),
            (1, &[8192]),
            (1, &[4096, 4]),
            (3, &[4096, 4096]),
            (3, &[4096, 4096, 100]),
            (2, &[]),
        ] {
            let pieces = lens.iter().map(|len| u64::from(*len)).sum();
            let blocks_bytes = u64::from(blocks) * 4096;
            let expected = Err(SubmitError::Bytes {
                blocks: blocks_bytes,
                pieces,
            });
            for nsid in [1, 3] {
                assert_eq!(
                    queue.read(nsid, 0, blocks, &of(lens), 0),
                    expected,
                    "{form:?}"
                );
                let written = queue.write((nsid, false), 0, blocks, &of(lens), 0);
                assert_eq!(written, expected, "{form:?}");
            }
        }
        assert_eq!(queue.in_flight(), 0);
        // Of what is not there nothing is known: the broker says so.
        queue.read(99, 0, 1, &of(&[100]), 0).unwrap();
        assert!(!finish(&mut queue).status.is_success());
    }
}
