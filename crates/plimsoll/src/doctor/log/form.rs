//! Whether a file is a text log at all, by its first bytes; and what it is where it is none.
//!
//! A log may hold a few bytes that no text has: torch 2.15 writes a zero byte behind the last words of a loader process
//! that crashes. A program or an archive holds many.

use std::path::Path;

use crate::render::Fail;

/// How much of a file is looked at.
const HEAD: usize = 8 << 10;
/// Bytes that no text has, that a log may have whatever its length, and one part of so many beyond that.
const FEW: usize = 2;
const SHARE: usize = 32;

/// Refuses what is no text log, and says what it is where that can be seen.
pub fn is_text(path: &Path, head: &[u8]) -> Result<(), Fail> {
    let (name, head) = (path.display(), &head[..head.len().min(HEAD)]);
    if head.is_empty() {
        return Err(Fail::usage(format!("`{name}` is empty")).hint("a log that was not flushed may lie elsewhere"));
    }
    let hints: [(&[u8], &str); 7] = [
        (b"\x1f\x8b", "it is compressed with gzip: unpack it first (`zcat`)"),
        (b"\x28\xb5\x2f\xfd", "it is compressed with zstd: unpack it first (`zstdcat`)"),
        (b"BZh", "it is compressed with bzip2: unpack it first (`bzcat`)"),
        (b"\xfd7zXZ", "it is compressed with xz: unpack it first (`xzcat`)"),
        (b"LPKSHHRH", "it is a journal of systemd: print it first (`journalctl --file`)"),
        (b"\xff\xfe", "it is UTF-16: convert it first (`iconv -f UTF-16 -t UTF-8`)"),
        (b"PK\x03\x04", "it is an archive, or a checkpoint of torch"),
    ];
    let known = hints.iter().find(|(mark, _)| head.starts_with(mark)).map(|(_, hint)| *hint);
    let zero = head.iter().position(|&byte| byte == 0);
    let odd = head.iter().filter(|byte| is_odd(**byte)).count();
    if known.is_none() && (zero.is_none() || odd <= FEW.max(head.len() / SHARE)) {
        return Ok(());
    }
    let found = zero.map_or(String::new(), |at| format!(": byte {at} is zero"));
    let fail = Fail::usage(format!("`{name}` is not a text log{found}"));
    Err(fail.hint(known.unwrap_or("name a text file, or a run folder")))
}

/// A byte that stands in no text of any encoding: controls, but those of lines, colours, bells and bars.
fn is_odd(byte: u8) -> bool {
    byte.is_ascii_control() && !matches!(byte, b'\n' | b'\r' | b'\t' | 0x07 | 0x08 | 0x0c | 0x1b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_with_a_zero_byte_is_a_log_and_a_program_is_none() {
        let torch = b"RuntimeError: DataLoader worker (pid 7) is killed by signal: Segmentation fault. \0\nstep 3\n";
        assert!(is_text(Path::new("x"), torch).is_ok());
        assert!(is_text(Path::new("x"), b"Fehler: Speicher gen\xfcgt nicht\n").is_ok(), "Latin-1");
        let wide: Vec<u8> = "no mark before it".bytes().flat_map(|byte| [byte, 0]).collect();
        for binary in [&b"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00"[..], &wide, b"PK\x03\x04\x00\x00abc"] {
            assert!(is_text(Path::new("x"), binary).is_err(), "{binary:?}");
        }
    }
}
