//! Any bytes are a log that can be read, in bounded memory.

use std::path::Path;

use proptest::prelude::*;

use super::*;

fn read_as(bytes: &[u8], of: Of) -> Read {
    let source = match of {
        Of::Program(source) => source,
        Of::Kernel => LogSource::Main,
    };
    Read { path: PathBuf::from("x.log"), of, scan: scan(bytes, source).unwrap() }
}

fn of(bytes: &[u8]) -> Diagnosis {
    diagnose(&[read_as(bytes, Of::Program(LogSource::Main))])
}

#[test]
fn lines_are_counted_as_an_editor_does_and_a_progress_bar_is_one_line() {
    let log = b"step 1\r step 2\r step 3\n\nOSError: [Errno 28] No space left on device\nbye";
    let diagnosis = of(log);
    assert_eq!(diagnosis.headline, "the disk is full (proven), line 3 of 4");
}

#[test]
fn what_the_training_went_on_after_was_survived() {
    let oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n".to_string();
    let died = of(oom.as_bytes());
    assert_eq!(died.cause.unwrap().confidence.name(), "proven");
    let survived = of((oom + &"step 7 loss 0.2\n".repeat(3000)).as_bytes());
    assert_eq!((survived.status, survived.cause), (Status::LogWithoutADeath, None));
    assert!(
        survived.remarks[0].starts_with("line 1 tells of trouble, and the training went on"),
        "{:?}",
        survived.remarks
    );
}

#[test]
fn a_bar_that_was_written_over_for_hours_hides_no_word() {
    let mut log = Vec::new();
    for step in 0..200_000 {
        log.extend_from_slice(format!("\r{step}/200000 [00:01<00:02, 12.0it/s]").as_bytes());
    }
    log.extend_from_slice(b"\rOSError: [Errno 28] No space left on device\r\nbye\n");
    assert_eq!(of(&log).headline, "the disk is full (proven), line 1 of 2");
}

#[test]
fn the_doctor_and_the_weighing_of_trainers_never_contradict_each_other() {
    #[derive(serde::Deserialize)]
    struct End {
        scene: plimsoll_launch::failure::Scene,
    }
    use plimsoll_launch::failure::{Scene, failure};
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-launch/tests/failures");
    // Here a manager's word on the very job settles what the trainer's own words leave open.
    let by_a_manager = ["slurm_oom_kill", "slurm_time_limit"];
    let (mut agreed, mut wrong) = (0, Vec::new());
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let end: End = toml::from_str(&fs_err::read_to_string(&path).unwrap()).unwrap();
        let kernel = end.scene.evidence.kernel_log.clone();
        let expected = failure(&Scene::of_log(end.scene.logs.clone(), kernel.clone()));
        let mut reads: Vec<Read> =
            end.scene.logs.iter().map(|log| read_as(log.text.as_bytes(), Of::Program(log.source))).collect();
        reads.extend(kernel.map(|log| read_as(log.as_bytes(), Of::Kernel)));
        let found = diagnose(&reads).cause.map(|cause| (cause.kind, cause.confidence));
        let settled = !matches!(expected.kind.name(), "completed" | "unknown");
        let expected = settled.then(|| (expected.kind.name().to_string(), expected.confidence));
        match found == expected {
            true => agreed += 1,
            false if by_a_manager.iter().any(|name| path.file_stem().is_some_and(|stem| stem == *name)) => {}
            false => wrong.push(format!("{}: {expected:?}, but {found:?}", path.display())),
        }
    }
    assert!(agreed >= 100 && wrong.is_empty(), "{agreed} agree; {}", wrong.join("\n"));
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
    let found = scan(std::io::BufReader::new(Flood(FLOOD)), LogSource::Main).unwrap();
    let kept: usize = found.telling.iter().map(|line| line.text.len()).sum();
    assert!(kept < 9 << 20 && found.left_out > 0, "{kept}");
}

#[test]
fn a_line_that_is_like_a_dull_one_but_for_a_short_number_is_still_read() {
    let log = "job ended with exit code 0\njob ended with exit code 137\nfailed (os error 2)\nfailed (os error 28)\n";
    let telling: Vec<usize> =
        scan(log.as_bytes(), LogSource::Main).unwrap().telling.iter().map(|line| line.number).collect();
    assert_eq!(telling, [2, 4]);
}

#[test]
fn a_line_without_an_end_is_cut() {
    let long = vec![b'x'; 1 << 20];
    let found = scan(&long[..], LogSource::Main).unwrap();
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
