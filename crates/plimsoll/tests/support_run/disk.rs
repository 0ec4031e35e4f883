//! A small disk of the test's own: a tmpfs that can be filled and emptied again.
//!
//! Invariant: it is mounted in a mount namespace that only the calling thread and what it starts can see, and is gone
//! with them whatever happens; dropping it unmounts it.

use std::ffi::CString;
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use plimsoll_machine::Bytes;

/// A tmpfs.
pub struct Disk {
    at: PathBuf,
}

impl Disk {
    /// Makes the folder `at` and mounts `size` there; or says why that is not possible here.
    pub fn mount(at: PathBuf, size: Bytes) -> Result<Disk, String> {
        let failed = |call: &str| Err(format!("{call}: {}", std::io::Error::last_os_error()));
        fs_err::create_dir(&at).map_err(|error| error.to_string())?;
        // SAFETY: gives this thread a mount namespace of its own; no memory is involved.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            return failed("unshare");
        }
        let options = CString::new(format!("size={},mode=700", size.0)).expect("no zero byte");
        let (none, kind, target) = (std::ptr::null(), c"tmpfs".as_ptr(), text(&at));
        let private = libc::MS_REC | libc::MS_PRIVATE;
        // SAFETY: all strings end with a zero byte and live until the call returns.
        if unsafe { libc::mount(none, c"/".as_ptr(), none, private, none.cast()) } != 0 {
            return failed("mount --make-rprivate");
        }
        // SAFETY: the same.
        if unsafe { libc::mount(kind, target.as_ptr(), kind, 0, options.as_ptr().cast()) } != 0 {
            return failed("mount");
        }
        Ok(Disk { at })
    }

    /// Writes a file into it until nothing more can be written.
    pub fn fill(&self) {
        let mut file = fs_err::File::create(self.filler()).unwrap();
        for block in [64 << 10, 4 << 10, 1] {
            let block = vec![b'x'; block];
            loop {
                match file.write_all(&block) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    /// Takes that file away.
    pub fn free(&self) {
        fs_err::remove_file(self.filler()).unwrap();
    }

    fn filler(&self) -> PathBuf {
        self.at.join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let at = text(&self.at);
        // SAFETY: the string ends with a zero byte and lives until the call returns.
        unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
    }
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no zero byte")
}
