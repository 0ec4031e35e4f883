//! Any bytes are a log that can be read, in bounded memory.

use proptest::prelude::*;

use super::*;

fn of(bytes: &[u8]) -> Diagnosis {
    diagnose(Path::new("x.log"), &scan(bytes).unwrap())
}

#[test]
fn lines_are_counted_as_an_editor_does_and_a_progress_bar_is_one_line() {
    let log = b"step 1\r step 2\r step 3\n\nOSError: [Errno 28] No space left on device\nbye";
    let diagnosis = of(log);
    assert_eq!(diagnosis.headline, "the disk is full (proven), line 3 of 4");
}

#[test]
fn what_the_log_goes_on_after_may_have_been_survived() {
    let oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n".to_string();
    let proven = of(oom.as_bytes());
    let survived = of((oom + &"step 7 loss 0.2\n".repeat(3000)).as_bytes());
    let sure = |diagnosis: &Diagnosis| diagnosis.cause.as_ref().unwrap().confidence;
    assert_eq!((sure(&proven).name(), sure(&survived).name()), ("proven", "likely"));
    assert!(survived.remarks[0].contains("goes on for 3000 lines"), "{:?}", survived.remarks);
}

#[test]
fn a_huge_log_of_telling_lines_is_kept_in_bounded_memory() {
    // Lines that are all telling, made as they are read.
    const FLOOD: usize = 64 << 20;
    struct Flood(usize);
    impl std::io::Read for Flood {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            let line = b"Killed process 7 (x) total-vm:1kB, anon-rss:1kB, file-rss:1kB, shmem-rss:1kB\n";
            let n = to.len().min(self.0);
            for (at, byte) in to[..n].iter_mut().enumerate() {
                *byte = line[(FLOOD - self.0 + at) % line.len()];
            }
            self.0 -= n;
            Ok(n)
        }
    }
    let found = scan(std::io::BufReader::new(Flood(FLOOD))).unwrap();
    let kept: usize = found.telling.iter().map(|line| line.text.len()).sum();
    assert!(kept < 9 << 20 && found.left_out > 0, "{kept}");
}

#[test]
fn a_line_that_is_like_a_dull_one_but_for_a_short_number_is_still_read() {
    let log = "job ended with exit code 0\njob ended with exit code 137\nfailed (os error 2)\nfailed (os error 28)\n";
    let telling: Vec<usize> = scan(log.as_bytes()).unwrap().telling.iter().map(|line| line.number).collect();
    assert_eq!(telling, [2, 4]);
}

#[test]
fn a_line_without_an_end_is_cut() {
    let long = vec![b'x'; 1 << 20];
    let found = scan(&long[..]).unwrap();
    assert_eq!((found.lines, found.last_lines[0].text.len()), (1, 64 << 10));
}

proptest! {
    #[test]
    fn any_bytes_have_a_story(bytes in proptest::collection::vec(any::<u8>(), 0..4000)) {
        let diagnosis = of(&bytes);
        prop_assert!(!diagnosis.headline.is_empty());
        let page = crate::doctor::text(&diagnosis, crate::doctor::Colour::Off);
        prop_assert!(page.chars().all(|c| c == '\n' || !c.is_control()));
    }

    #[test]
    fn any_lines_of_telling_words_have_a_story(picks in proptest::collection::vec((0usize..12, any::<u16>()), 0..40)) {
        let words = [
            "Traceback (most recent call last):",
            "  File \"a.py\", line 3, in f",
            "RuntimeError: CUDA out of memory. Tried to allocate ",
            "Killed process 7 (a",
            "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/a,task_memcg=/a,task=b,pid=",
            "memory: usage 1kB, limit ",
            "\"OOMKilled\": true",
            "Killed",
            "panicked at src/a.rs:1:",
            "systemd-oomd[1]: Killed /a due to memory",
            " is reserved by PyTorch but unallocated",
            "Process 9 has 3 GiB memory in use total capacity of  of which ",
        ];
        let log: String = picks.iter().map(|(word, number)| format!("{}{number}\n", words[*word])).collect();
        of(log.as_bytes());
    }
}
