//! How much of the program's file one page fault maps.
//!
//! A fault on a page of a file maps what lies around it in the page cache too: 64 KiB, and since Linux 6.18 the whole of each folio that
//! begins there. How large those are follows from how the file was written and read, up to 2 MiB, so that the same code in the same
//! file may be resident in 12 MiB or in 40.

use std::ops::Range;

use fs_err as fs;

/// What a fault maps where folios are single pages (`fault_around_bytes`, by default).
pub const FAULT_AROUND: u64 = 64 << 10;

/// Pages that are touched to find it out.
const TOUCHES: u64 = 64;
const PAGE: usize = 4096;

/// Bytes that a fault on the program's own file maps, on average; none where that cannot be seen. Called when clean pages were let
/// go ([`crate::shed`]); what it maps is let go again.
pub fn mapped_by_a_fault() -> Option<u64> {
    let path = fs::read_link("/proc/self/exe").ok()?;
    let path = path.to_string_lossy();
    // Read twice, so that what reads them is resident when it counts.
    let before = own(&path)?;
    let before = Own { resident: own(&path)?.resident, ..before };
    let pages: u64 = before.ranges.iter().map(|range| (range.len() / PAGE) as u64).sum();
    let begun = faults()?;
    for nth in 0..TOUCHES {
        if let Some(address) = page(&before.ranges, scattered(nth) % pages.max(1)) {
            // SAFETY: the page is a part of a mapping of the program's own file that can be read, and lasts as long as the process.
            unsafe { std::ptr::read_volatile(address as *const u8) };
        }
    }
    let faults = faults()?.checked_sub(begun).filter(|faults| *faults > 0)?;
    let mapped = own(&path)?.resident.saturating_sub(before.resident);
    crate::shed();
    Some(mapped / faults)
}

/// The program's own file, as it is mapped without a page of our own.
#[derive(Debug, PartialEq)]
struct Own {
    ranges: Vec<Range<usize>>,
    resident: u64,
}

fn own(path: &str) -> Option<Own> {
    let text = fs::read_to_string("/proc/self/smaps").ok()?;
    Some(parse(&text, path)).filter(|own| !own.ranges.is_empty())
}

fn parse(text: &str, path: &str) -> Own {
    let mut own = Own { ranges: Vec::new(), resident: 0 };
    let mut within = false;
    for line in text.lines() {
        match line.split_once(':').filter(|(name, _)| !name.contains(' ')) {
            Some(("Rss", value)) if within => {
                let kib = value.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
                own.resident += kib << 10;
            }
            Some(_) => {}
            None => {
                let range = crate::shed::range(line).filter(|_| line.ends_with(path));
                within = range.is_some();
                own.ranges.extend(range.map(|(start, end)| start..end));
            }
        }
    }
    own
}

/// The address of page `nth` of all ranges.
fn page(ranges: &[Range<usize>], mut nth: u64) -> Option<usize> {
    for range in ranges {
        let pages = (range.len() / PAGE) as u64;
        if nth < pages {
            return Some(range.start + nth as usize * PAGE);
        }
        nth -= pages;
    }
    None
}

/// Numbers that lie far apart (the finalizer of SplitMix64).
fn scattered(nth: u64) -> u64 {
    let mut x = (nth + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Faults of this thread so far.
fn faults() -> Option<u64> {
    // SAFETY: all bits zero are a `rusage`, and the call writes one whole.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let done = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    (done == 0).then_some((usage.ru_minflt + usage.ru_majflt) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
1000-3000 r--p 00000000 fe:00 12 /bin/x
Rss:                   8 kB
3000-5000 r-xp 00002000 fe:00 12 /bin/x
Rss:                   4 kB
5000-6000 rw-p 00004000 fe:00 12 /bin/x
Rss:                   4 kB
7000-9000 r-xp 00000000 fe:00 13 /lib/y
Rss:                   8 kB
";

    #[test]
    fn what_is_mapped_of_the_program_is_read_without_what_is_written_to_and_without_libraries() {
        let own = parse(TEXT, "/bin/x");
        assert_eq!(own, Own { ranges: vec![0x1000..0x3000, 0x3000..0x5000], resident: 12 << 10 });
        let pages: Vec<_> = (0..5).map(|nth| page(&own.ranges, nth)).collect();
        assert_eq!(pages, [Some(0x1000), Some(0x2000), Some(0x3000), Some(0x4000), None]);
    }

    #[test]
    fn a_fault_maps_a_page_at_least_and_no_more_than_there_is() {
        crate::cache_code();
        crate::shed();
        let mapped = mapped_by_a_fault().expect("this process has a file and pages of it");
        let whole = fs::metadata("/proc/self/exe").unwrap().len();
        assert!((PAGE as u64..=whole).contains(&mapped), "{mapped} of {whole}");
    }
}
