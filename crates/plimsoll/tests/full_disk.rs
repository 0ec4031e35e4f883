//! A disk that fills up under a run. Checkpoints that find no room are told and the run goes on; at its end it waits for
//! room; the last good checkpoint verifies all the while, and what comes out is what an undisturbed run gives, to the
//! bit.
//!
//! The disk is a tmpfs in a mount namespace of the test's own, which needs root; skipped with the reason elsewhere.

mod support_run;

use std::path::Path;
use std::sync::OnceLock;

use plimsoll_machine::Bytes;
use plimsoll_watch::Event;
use rustix::process::{Signal, kill_process};
use support_run::disk::Disk;
use support_run::shelf::Shelf;
use support_run::trainer::{Trainer, any_of, last_step, records, resumed_from};
use support_run::{PINS, Result, Workshop};

const KEEP: usize = 2;
const STEPS: u64 = 45;
const COURSE: &str = "effective_batch = 8\nsteps = 45\nsave_every = 3\neval_every = 4\nkeep = 2\nclip_norm = 1.0\n\
                      optimizer = { name = \"adamw\", lr = 3e-3 }\n";
/// Twice what the plan wants to find free.
const SIZE: Bytes = Bytes::mib(48);
const STANDS: &str = "stands; the run goes on";
const WAITS: &str = "waiting until it can be written";

fn workshop(snapshot: bool) -> Workshop {
    let workshop = Workshop::new();
    workshop.job(&format!("{COURSE}{PINS}snapshot = {snapshot}\n"));
    workshop
}

/// The run on a disk with room.
fn reference() -> &'static Result {
    static REFERENCE: OnceLock<Result> = OnceLock::new();
    REFERENCE.get_or_init(|| {
        let workshop = workshop(false);
        Trainer::train(&workshop, "run").end().must(0, &["done: 45 steps"]);
        Result::of(&workshop.path("run"))
    })
}

/// A run on a small disk that is filled in the middle of it.
struct Cramped {
    shelf: Shelf,
    disk: Disk,
    workshop: Workshop,
}

impl Cramped {
    /// It has saved, most of it is still to be done, and the disk is full; or why there is no such disk here.
    fn start(snapshot: bool) -> std::result::Result<(Cramped, Trainer), String> {
        let workshop = workshop(snapshot);
        let disk = Disk::mount(workshop.path("run"), SIZE)?;
        let shelf = Shelf::of(&workshop, "run", KEEP);
        let mut trainer = Trainer::train(&workshop, "run");
        let saved = |run: &Path| records(run).iter().any(|r| matches!(r.event, Event::Saved { .. }));
        let worker = trainer.wait_for(saved).wait_for_step(any_of(4..=20)).worker();
        // Halted, perhaps inside a save, so that the end of the run cannot come first.
        kill_process(worker, Signal::STOP).unwrap();
        if last_step(trainer.run()) > STEPS - 10 {
            drop(trainer);
            drop(disk);
            return Cramped::start(snapshot);
        }
        disk.fill();
        kill_process(worker, Signal::CONT).unwrap();
        Ok((Cramped { shelf, disk, workshop }, trainer))
    }

    /// Looks at the checkpoints again and again until `words` are said.
    fn look_until(&mut self, trainer: &mut Trainer, words: &str) {
        loop {
            let (over, said) = (trainer.has_ended(), trainer.said());
            self.shelf.look(words);
            if said.contains(words) {
                return;
            }
            assert!(!over, "it ended before: {said}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

#[test]
fn a_run_whose_disk_is_full_goes_on_waits_at_its_end_and_finishes_when_there_is_room() {
    for snapshot in [false, true] {
        let (mut run, mut trainer) = match Cramped::start(snapshot) {
            Ok(started) => started,
            Err(reason) => return println!("skipped: no file system of our own: {reason}"),
        };
        run.look_until(&mut trainer, "is not saved: ");
        run.look_until(&mut trainer, STANDS);
        run.look_until(&mut trainer, WAITS);
        let newest = run.shelf.newest();
        assert!(newest > 0 && newest < STEPS, "{newest}");
        run.disk.free();
        trainer.end().must(0, &["done: 45 steps"]);
        run.shelf.look("at the end");
        assert_eq!(run.shelf.newest(), STEPS);
        let told = format!("snapshot {snapshot}, full after step {newest}");
        let result = Result::of(&run.workshop.path("run"));
        assert!(result.losses.len() as u64 >= newest);
        result.must_equal_as_far_as_noted(reference(), &told);
    }
}

#[test]
fn a_run_that_is_stopped_on_a_full_disk_says_what_is_saved_and_goes_on_from_there() {
    // As soon as a save failed, and when nothing is left to do but to wait.
    for (snapshot, words) in [(false, STANDS), (true, STANDS), (false, WAITS), (true, WAITS)] {
        let (mut run, mut trainer) = match Cramped::start(snapshot) {
            Ok(started) => started,
            Err(reason) => return println!("skipped: no file system of our own: {reason}"),
        };
        run.look_until(&mut trainer, words);
        trainer.signal(Signal::TERM);
        let said = trainer.end();
        run.shelf.look("stopped");
        let newest = run.shelf.newest();
        let saved = format!("everything up to step {newest} is saved");
        said.must(1, &["error: ", &saved, "go on: plimsoll resume run"]);

        run.disk.free();
        let going_on = format!("going on after step {newest}");
        Trainer::resume(&run.workshop, "run").end().must(0, &[&going_on, "done: 45 steps"]);
        run.shelf.look("at the end");
        assert_eq!(resumed_from(&run.workshop.path("run")), [newest]);
        let told = format!("snapshot {snapshot}, stopped on a full disk after step {newest}, at `{words}`");
        Result::of(&run.workshop.path("run")).must_equal(reference(), &told);
    }
}
