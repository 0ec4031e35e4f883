//! Letting go of program pages that were needed once: arguments, settings and the like are read at the start and never
//! again, and the pages of their code stay resident until somebody drops them.
//!
//! Only clean pages of files are dropped, so nothing is lost: the kernel maps them again when they are touched.

use std::ffi::c_void;
use std::io::Read;

use fs_err as fs;

/// Drops the clean pages of mapped files. What cannot be done is left: it costs memory and nothing else. Called before
/// pages are locked. The kernel's record of the peak (`VmHWM`) stays: that peak was real.
pub fn shed() {
    let Ok(text) = fs::read_to_string("/proc/self/smaps") else { return };
    for (start, end) in clean(&text) {
        // SAFETY: the range is a read-only mapping of a file none of whose pages this process has written to, so every
        // page comes back from the file with the same content.
        unsafe { libc::madvise(start as *mut c_void, end - start, libc::MADV_DONTNEED) };
    }
}

/// Reads the program's own file, as far as it is mapped, into the page cache. A fault maps the sixteen pages around it that are
/// there: what is resident then follows from what was run, not from what the machine has reclaimed of the file before.
/// Returns how many bytes were read; fewer, where something stands in the way, are no harm.
pub fn cache_code() -> u64 {
    let read = || {
        let (path, maps) = (fs::read_link("/proc/self/exe").ok()?, fs::read_to_string("/proc/self/maps").ok()?);
        let end = maps.lines().filter(|line| line.ends_with(&*path.to_string_lossy())).filter_map(file_end).max()?;
        let mut file = fs::File::open("/proc/self/exe").ok()?.take(end);
        let (mut piece, mut all) = ([0; 32 << 10], 0);
        while let Ok(n @ 1..) = file.read(&mut piece) {
            all += n as u64;
        }
        Some(all)
    };
    read().unwrap_or(0)
}

/// Where a line of `maps` ends in its file.
fn file_end(line: &str) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(number(fields.nth(1)?)? + number(end)?.checked_sub(number(start)?)?)
}

/// Read-only mappings of files without a page of our own, from the text of `smaps`.
fn clean(text: &str) -> Vec<(usize, usize)> {
    let (mut found, mut open) = (Vec::new(), None);
    for line in text.lines() {
        match line.split_once(':').filter(|(name, _)| !name.contains(' ')) {
            Some(("Anonymous", value)) => {
                if value.trim() == "0 kB" {
                    found.extend(open.take());
                }
            }
            Some(_) => {}
            None => open = range(line),
        }
    }
    found
}

/// The range of a line `start-end perms offset device inode path`, where it is a file's and cannot be written to.
pub(crate) fn range(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let perms = fields.next()?;
    let inode = fields.nth(2)?;
    // A device is no file: what a card's driver has mapped does not come back.
    if fields.next().is_some_and(|path| path.starts_with("/dev/")) {
        return None;
    }
    let address = |text: &str| usize::from_str_radix(text, 16).ok();
    let range = (address(start)?, address(end)?);
    (perms.starts_with('r') && !perms.contains('w') && inode != "0" && range.0 < range.1).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_read_only_files_without_pages_of_our_own_are_let_go() {
        let text = "\
1000-3000 r--p 00000000 fe:00 12 /bin/x
Size:                  8 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
3000-5000 r-xp 00002000 fe:00 12 /bin/x
Anonymous:             0 kB
5000-6000 r--p 00004000 fe:00 12 /bin/x
Anonymous:             4 kB
6000-7000 rw-p 00005000 fe:00 12 /bin/x
Anonymous:             0 kB
7000-8000 r--p 00000000 00:00 0 [vvar]
Anonymous:             0 kB
8000-9000 r--s 00000000 00:06 417 /dev/nvidia0
Anonymous:             0 kB
";
        assert_eq!(clean(text), [(0x1000, 0x3000), (0x3000, 0x5000)]);
    }

    #[test]
    fn a_line_of_maps_says_how_far_its_file_is_mapped() {
        assert_eq!(file_end("3000-5000 r-xp 00002000 fe:00 12 /bin/x"), Some(0x4000));
        assert_eq!(file_end("5000-3000 r-xp 00002000 fe:00 12 /bin/x"), None);
    }

    #[test]
    fn the_programs_own_code_is_read_as_far_as_it_is_mapped() {
        let here = cache_code as fn() -> u64 as usize;
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let around = maps.lines().find(|line| {
            let (start, end) = line.split_ascii_whitespace().next().and_then(|span| span.split_once('-')).unwrap();
            let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
            (number(start)..number(end)).contains(&here)
        });
        let end = file_end(around.unwrap()).unwrap();
        let whole = fs::metadata("/proc/self/exe").unwrap().len();
        let read = cache_code();
        assert!((end..=whole).contains(&read) && end > 0, "read {read} of {whole}, mapped to {end}");
    }

    #[test]
    fn a_process_that_shed_its_pages_goes_on_and_is_smaller() {
        let file = || {
            let text = fs::read_to_string("/proc/self/status").unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap().to_string();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        };
        let before = file();
        shed();
        let after = file();
        assert!(after < before, "{before} kB before, {after} kB after");
        assert_eq!(clean("").len(), 0);
    }
}
