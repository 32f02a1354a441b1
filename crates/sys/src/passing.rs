//! Descriptors and bytes over a Unix socket, and who is at its other end.
//!
//! # Contract
//! Neither call sleeps unless the caller asks for it, whatever flags the other side has set on a
//! description that it shares: `wait` is a matter of the call. Descriptors that come unasked are
//! closed.
use crate::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Most descriptors of one message.
pub const DESCRIPTORS_MAX: usize = 8;

/// Sends bytes, and descriptors with the first of them; how many bytes were taken.
///
/// # Errors
/// EAGAIN unless `wait`; EPIPE, ECONNRESET: the other side is gone; EINVAL: too many descriptors.
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    wait: bool,
) -> Result<usize, Errno> {
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(Errno::INVAL);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL
        | if wait {
            SendFlags::empty()
        } else {
            SendFlags::DONTWAIT
        };
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
}

/// Receives bytes and what descriptors came with them, appended; 0 bytes: the other side has
/// closed.
///
/// # Errors
/// EAGAIN unless `wait`; ECONNRESET; EMFILE.
pub fn receive(
    socket: impl AsFd,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    wait: bool,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC
        | if wait {
            RecvFlags::empty()
        } else {
            RecvFlags::DONTWAIT
        };
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            for right in rights {
                descriptors.push(crate::os::aside(right)?);
            }
        }
    }
    Ok(received.bytes)
}

/// The user and the process at the other end of a Unix socket, as of when it connected.
///
/// # Errors
/// It is no such socket.
pub fn peer(socket: impl AsFd) -> Result<(u32, i32), Errno> {
    let peer = sockopt::socket_peercred(socket)?;
    Ok((peer.uid.as_raw(), peer.pid.as_raw_nonzero().get()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::Event;
    use std::os::unix::net::UnixStream;

    #[test]
    fn descriptors_arrive_with_their_bytes() {
        let (one, other) = UnixStream::pair().unwrap();
        let event = Event::new().unwrap();
        let passed = event.try_clone().unwrap();
        assert_eq!(send(&one, b"four", &[passed.as_fd()], false), Ok(4));
        let (mut bytes, mut descriptors) = ([0; 8], Vec::new());
        assert_eq!(receive(&other, &mut bytes, &mut descriptors, false), Ok(4));
        assert_eq!((&bytes[..4], descriptors.len()), (&b"four"[..], 1));
        rustix::io::write(&descriptors[0], &1_u64.to_ne_bytes()).unwrap();
        assert!(event.lower());
        let empty = receive(&other, &mut bytes, &mut descriptors, false);
        assert_eq!(empty, Err(Errno::AGAIN));
        drop(one);
        assert_eq!(receive(&other, &mut bytes, &mut descriptors, true), Ok(0));
        let gone = send(&other, b"x", &[], true);
        assert_eq!(gone, Err(Errno::PIPE));
    }

    #[test]
    fn too_many_descriptors_are_an_error() {
        let (one, _other) = UnixStream::pair().unwrap();
        let many = [one.as_fd(); DESCRIPTORS_MAX + 1];
        assert_eq!(send(&one, b"x", &many, false), Err(Errno::INVAL));
    }

    #[test]
    fn the_peer_is_who_made_the_pair() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own = (rustix::process::geteuid().as_raw(), std::process::id());
        assert_eq!(peer(&one), Ok((own.0, own.1.cast_signed())));
    }
}
