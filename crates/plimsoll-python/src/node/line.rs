//! Lines between processes of one user and one node: sockets whose packets are bells, and whose end tells of the other's end.
//!
//! Nothing of the stream goes over them, only the ring's memory, once. Invariant: nobody blocks in sending, and waiting is in
//! slices, with a question between whether to go on. A process's end is seen by the line and by its pidfd, since a fork of it may
//! hold the line open for longer.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, SocketFlags, SocketType, recv, recvmsg, send, sendmsg, shutdown, socket_with, socketpair,
};
use rustix::process::{Pid, PidfdFlags, geteuid, getpid, pidfd_open};

/// How long one waits before asking whether to go on.
pub const SLICE: Duration = Duration::from_millis(100);

const QUIETLY: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// A process, by its number. Another may have the number after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(Pid);

impl Process {
    /// None where it cannot be one.
    pub fn from_number(number: u64) -> Option<Process> {
        i32::try_from(number).ok().and_then(Pid::from_raw).map(Process)
    }

    pub fn number(self) -> u64 {
        u64::from(self.0.as_raw_nonzero().get().unsigned_abs())
    }

    /// What becomes readable when it ends; none where it cannot be watched. An error: it has ended.
    pub fn watch(self) -> std::result::Result<Option<OwnedFd>, Ended> {
        match pidfd_open(self.0, PidfdFlags::empty()) {
            Ok(process) if ended(&process) => Err(Ended),
            Ok(process) => Ok(Some(process)),
            Err(Errno::SRCH) => Err(Ended),
            Err(_) => Ok(None),
        }
    }
}

/// A process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended;

/// One end of a line.
pub struct Line {
    socket: OwnedFd,
    /// The process at the other end, where it can be watched.
    process: Option<OwnedFd>,
    number: Option<Process>,
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Ours,
    /// Of another user.
    Stranger,
    /// It has ended, though a fork of it holds the line.
    Dead,
}

/// A packet that came.
pub enum Packet {
    /// Bytes, and a file with them.
    Here(usize, Option<OwnedFd>),
    Nothing,
    /// The line has ended.
    End,
}

/// A socket as all of ours are.
pub fn new_socket() -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

impl Line {
    /// Takes a socket that is connected, and looks who is there.
    pub fn new(socket: OwnedFd) -> Result<(Line, Peer)> {
        let (peer, user) = at_the_other_end(&socket)?;
        // In another namespace of processes, or with an old kernel, nobody can be watched, and the end of the line alone tells.
        let (process, peer_is) = match peer.map_or(Ok(None), Process::watch) {
            _ if user != geteuid().as_raw() => (None, Peer::Stranger),
            Ok(process) => (process, Peer::Ours),
            Err(Ended) => (None, Peer::Dead),
        };
        let number = peer.filter(|_| process.is_some());
        Ok((Line { socket, process, number }, peer_is))
    }

    /// Both ends of a line inside this process.
    pub fn pair() -> Result<(Line, Line)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let line = |socket| Line { socket, process: None, number: Some(Process(getpid())) };
        Ok((line(one), line(other)))
    }

    /// The process at the other end, where it can be seen.
    pub fn peer(&self) -> Option<Process> {
        self.number
    }

    /// Wakes the other. Where so many bells wait that none more fits, it will wake anyway.
    pub fn ring(&self) {
        let _ = send(&self.socket, b"!", QUIETLY);
    }

    /// Sends one packet, with a file if given.
    pub fn send(&self, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> Result<()> {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = SendAncillaryBuffer::new(&mut room);
        let files = file.map(|file| [file]);
        if let Some(files) = &files {
            with.push(SendAncillaryMessage::ScmRights(files));
        }
        sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut with, QUIETLY).map(drop)
    }

    /// The next packet, if there is one.
    pub fn receive(&self, into: &mut [u8]) -> Packet {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = RecvAncillaryBuffer::new(&mut room);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        match recvmsg(&self.socket, &mut [IoSliceMut::new(into)], &mut with, flags) {
            Ok(got) if got.bytes > 0 => {
                let file = with.drain().find_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(mut files) => files.next(),
                    _ => None,
                });
                Packet::Here(got.bytes, file)
            }
            Err(Errno::AGAIN | Errno::INTR) => Packet::Nothing,
            _ => Packet::End,
        }
    }

    /// Takes all bells. False: the other has ended.
    pub fn listen(&self) -> bool {
        let mut bell = [0u8; 1];
        loop {
            match recv(&self.socket, &mut bell, RecvFlags::DONTWAIT) {
                Ok((_, 1..)) => {}
                Err(Errno::AGAIN | Errno::INTR) => return self.is_alive(),
                _ => return false,
            }
        }
    }

    /// Whether the process at the other end runs, as far as it can be watched.
    pub fn is_alive(&self) -> bool {
        self.process.as_ref().is_none_or(|process| !ended(process))
    }

    /// Waits a slice for a bell, or for the other's end.
    pub fn wait(&self) {
        wait(self.watched(), SLICE);
    }

    /// What becomes readable by a bell, or by the other's end.
    pub fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [Some(&self.socket), self.process.as_ref()].into_iter().flatten().map(AsFd::as_fd)
    }

    /// Ends the line for whoever holds it, forks of this process too.
    pub fn hang_up(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

/// The process at the other end of a socket, and its user. Its number is 0, so none, where it has none in our namespace of processes:
/// rustix gives it as one that cannot be 0.
fn at_the_other_end(socket: &OwnedFd) -> Result<(Option<Process>, libc::uid_t)> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    let into = (&raw mut found).cast();
    // SAFETY: the kernel writes at most `bytes` into `found`, which any bytes are a value of.
    let said =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, into, &raw mut bytes) };
    if said != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    Ok((u64::try_from(found.pid).ok().and_then(Process::from_number), found.uid))
}

/// Waits until one of them is readable, for so long at most; a signal ends it too.
pub fn wait<'a>(watched: impl Iterator<Item = BorrowedFd<'a>>, most: Duration) {
    let mut all: Vec<PollFd<'_>> = watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let most = Timespec { tv_sec: most.as_secs().min(3600) as i64, tv_nsec: most.subsec_nanos().into() };
    // Whatever it says, the caller looks for itself.
    let _ = poll(&mut all, Some(&most));
}

/// Whether a process that is watched has ended.
pub fn ended(process: &OwnedFd) -> bool {
    let mut one = [PollFd::new(process, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut one, Some(&now)).is_ok_and(|ready| ready > 0)
}
