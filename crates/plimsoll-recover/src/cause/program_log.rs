//! The dying program's own last words: a panic and its place, a traceback, an error of disk, memory or numbers.
//!
//! Total: any lines give an answer. Where several errors were said, the first of the gravest sort counts: what follows
//! it (peers that time out, a traceback on the way out) is an echo. `137` and `Killed` are no words of the program.

use super::Kind;

/// What the program said of its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastWords {
    /// What that makes it.
    pub kind: Kind,
    /// Whether the words can mean nothing else.
    pub plain: bool,
    /// The line.
    pub line: String,
}

/// Reads one line: what it makes of the death, and whether it can mean nothing else.
type Reader = fn(&str) -> Option<(Kind, bool)>;

/// Reads the last lines of standard error.
pub fn parse_last_words(lines: &[String]) -> Option<LastWords> {
    // Devices and disks first: a panic or a traceback is how such an error is told.
    let readers: [Reader; 6] = [cuda_memory, no_space, io_error, allocation_refused, not_finite, bad_data];
    for reader in readers {
        let told = lines.iter().find_map(|line| {
            let (kind, plain) = reader(line)?;
            Some(LastWords { kind, plain, line: line.clone() })
        });
        if told.is_some() {
            return told;
        }
    }
    panic_place(lines).or_else(|| traceback_place(lines))
}

/// The line in which a parent tells that a child of it was killed with `SIGKILL`.
pub fn child_killed(lines: &[String]) -> Option<&String> {
    lines.iter().find(|line| {
        let loader = line.contains("DataLoader worker (pid") && line.contains("is killed by signal: Killed");
        let rank = line.contains("Signal 9 (SIGKILL) received by PID");
        let status = line.contains("exitcode") && line.contains(": -9 (pid: ");
        loader || rank || status || line.contains("exits with return code = -9")
    })
}

fn cuda_memory(line: &str) -> Option<(Kind, bool)> {
    let has = |mark: &str| line.contains(mark);
    // After a timeout a corrupted length asks for this much; memory has not run out.
    if has("Tried to allocate more than 1EB") {
        return None;
    }
    let device = ["CUDA", "HIP", "XPU", "NPU"].iter().any(|name| line.contains(&format!("{name} out of memory")));
    let driver = has("CUDA_ERROR_OUT_OF_MEMORY")
        || has("uda failure 'out of memory'")
        || has("uda failure 2 'out of memory'")
        || (has("CUDA") && has("rror") && has(": out of memory"));
    if device || driver {
        return Some((Kind::CudaOutOfMemory, true));
    }
    let masked = ["CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_ALLOC_FAILED"];
    masked.iter().any(|mark| has(mark)).then_some((Kind::CudaOutOfMemory, false))
}

fn no_space(line: &str) -> Option<(Kind, bool)> {
    let has = |mark: &str| line.contains(mark);
    if has("insufficient shared memory (shm)") || has("out of shared memory") {
        return Some((Kind::DiskFull, false));
    }
    let full = has("No space left on device")
        || has("(os error 28)")
        || has("ENOSPC")
        || has("Disk quota exceeded")
        || has("(os error 122)")
        || (has(" free, ") && has(" are needed"));
    full.then_some((Kind::DiskFull, true))
}

fn io_error(line: &str) -> Option<(Kind, bool)> {
    let marks = [
        "(os error 5)",
        "Input/output error",
        "[Errno 5]",
        "(os error 30)",
        "Read-only file system",
        "(os error 116)",
        "Stale file handle",
    ];
    marks.iter().any(|mark| line.contains(mark)).then_some((Kind::IoError, true))
}

fn allocation_refused(line: &str) -> Option<(Kind, bool)> {
    let has = |mark: &str| line.contains(mark);
    let rust = has("memory allocation of ") && has(" bytes failed");
    let torch = has("DefaultCPUAllocator: ") && has("you tried to allocate");
    let other = has("(os error 12)") || has("Cannot allocate memory") || has("std::bad_alloc");
    let python = line.trim_start().starts_with("MemoryError") || has("ArrayMemoryError");
    (rust || torch || other || python).then_some((Kind::AllocationRefused, true))
}

fn not_finite(line: &str) -> Option<(Kind, bool)> {
    let has = |mark: &str| line.contains(mark);
    let weights = has("are not all finite numbers");
    let loss = has("the loss of step ")
        && [" is NaN", " is inf", " is -inf"].iter().any(|end| line.trim_end().ends_with(end) || has(end));
    let foreign =
        has("non-finite") || has("Non-finite") || has("loss is nan") || has("Loss is nan") || has("nan or inf");
    (weights || loss || foreign).then_some((Kind::NonFinite, weights || loss))
}

fn bad_data(line: &str) -> Option<(Kind, bool)> {
    let has = |mark: &str| line.contains(mark);
    let ours = (has(" row ") || has(" line ")) && has("expected ") && has(", found ");
    let foreign = has("JSONDecodeError") || has("ArrowInvalid") || has("ParquetError") || has("UnicodeDecodeError");
    (ours || foreign).then_some((Kind::BadData, ours))
}

/// `thread 'main' panicked at FILE:LINE:COL:`, and before Rust 1.73 `panicked at 'message', FILE:LINE:COL`.
fn panic_place(lines: &[String]) -> Option<LastWords> {
    lines.iter().find_map(|line| {
        let (_, rest) = line.split_once("panicked at ")?;
        let candidate = if rest.starts_with('\'') || rest.starts_with('"') { rest.rsplit_once(", ")?.1 } else { rest };
        let place = candidate.trim().trim_end_matches(':');
        let mut parts = place.rsplitn(3, ':');
        let numbers = [parts.next()?, parts.next()?];
        let numbered = numbers.iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
        let named = parts.next().is_some_and(|file| !file.is_empty());
        (numbered && named).then(|| LastWords {
            kind: Kind::Bug { place: place.to_string() },
            plain: true,
            line: line.clone(),
        })
    })
}

/// The innermost frame of the first Python traceback.
fn traceback_place(lines: &[String]) -> Option<LastWords> {
    let start = lines.iter().position(|line| line.contains("Traceback (most recent call last):"))?;
    let frame = |line: &String| {
        let (_, rest) = line.split_once("File \"")?;
        let (file, rest) = rest.split_once("\", line ")?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        (digits > 0).then(|| format!("{file}:{}", &rest[..digits]))
    };
    let body = &lines[start + 1..];
    let end = body.iter().position(|line| !line.starts_with([' ', '\t']) && frame(line).is_none());
    let end = end.unwrap_or(body.len());
    let place = body[..end].iter().filter_map(frame).next_back()?;
    let line = body.get(end).unwrap_or(&lines[start]).clone();
    Some(LastWords { kind: Kind::Bug { place }, plain: false, line })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(text: &str) -> Option<Kind> {
        let lines: Vec<String> = text.lines().map(str::to_string).collect();
        parse_last_words(&lines).map(|words| words.kind)
    }

    #[test]
    fn the_place_of_a_panic_is_read_in_every_form_rust_has_written() {
        let place = |text| Some(Kind::Bug { place: String::from(text) });
        assert_eq!(words("thread 'main' panicked at src/a.rs:12:5:\nindex out of bounds"), place("src/a.rs:12:5"));
        assert_eq!(words("thread 'main' (4242) panicked at src/a.rs:12:5:\nboom"), place("src/a.rs:12:5"));
        assert_eq!(words("thread 'main' panicked at 'a, b', src/a.rs:1:2"), place("src/a.rs:1:2"));
        assert_eq!(words("the audience panicked at noon"), None);
    }

    #[test]
    fn the_innermost_frame_of_the_first_traceback_is_the_place() {
        let text = "Traceback (most recent call last):\n  File \"train.py\", line 9, in <module>\n    main()\n  \
                    File \"net.py\", line 40, in forward\n    x\nKeyError: 'a'\nTraceback (most recent call last):\n  \
                    File \"other.py\", line 1, in f\nValueError";
        assert_eq!(words(text), Some(Kind::Bug { place: "net.py:40".to_string() }));
    }

    #[test]
    fn a_device_error_outranks_the_traceback_and_the_timeouts_around_it() {
        let text = "Traceback (most recent call last):\n  File \"a.py\", line 9, in f\n\
                    torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n\
                    Watchdog caught collective operation timeout: WorkNCCL(Timeout(ms)=600000)";
        assert_eq!(words(text), Some(Kind::CudaOutOfMemory));
        assert_eq!(words("torch.AcceleratorError: CUDA error: out of memory"), Some(Kind::CudaOutOfMemory));
        assert_eq!(words("RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory."), None);
    }

    #[test]
    fn error_numbers_are_whole_numbers() {
        assert_eq!(words("write failed (os error 5)"), Some(Kind::IoError));
        assert_eq!(words("connect failed (os error 50)"), None);
        assert_eq!(words("write failed (os error 28)"), Some(Kind::DiskFull));
    }

    #[test]
    fn killed_is_not_a_word_of_the_program() {
        assert_eq!(words("Killed"), None);
        assert_eq!(words("exit status: 137"), None);
    }

    proptest! {
        #[test]
        fn any_lines_are_read_without_a_panic(lines in proptest::collection::vec("\\PC{0,80}", 0..8)) {
            parse_last_words(&lines);
            child_killed(&lines);
        }

        #[test]
        fn any_shuffle_of_known_words_is_read_without_a_panic(
            words in proptest::collection::vec(prop::sample::select(vec![
                "panicked at ", "'", ", ", "a.rs:1:2", ":", "é", "Traceback (most recent call last):", "File \"", "\", line ",
                "9", "\n", " ", "DataLoader worker (pid", "MemoryError",
            ]), 0..30)
        ) {
            let text = words.concat();
            let lines: Vec<String> = text.lines().map(str::to_string).collect();
            parse_last_words(&lines);
        }
    }
}
