//! `kill -9` at a hundred random moments, of the worker, of the supervisor and of both; and a worker that dies at a
//! chosen byte of a checkpoint. Each time the run goes on, by its supervisor or by `plimsoll resume`, and ends as the run
//! that nobody touched: the same losses, evaluations and weights, to the bit. No checkpoint is ever lost on the way.

mod support_run;

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use plimsoll_watch::{Event, Record};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, kill_process, pidfd_open, pidfd_send_signal, prlimit,
};
use support_run::chance::{Chance, SEED, seed};
use support_run::moment::{BETWEEN, Moment, work_of};
use support_run::shelf::Shelf;
use support_run::trainer::{Trainer, last_step, records, wait_for_end};
use support_run::{PINS, Result, Workshop};

/// Shared out evenly among the lanes.
const MOMENTS: usize = 100;
const KEEP: usize = 2;
/// Saves at other steps than evaluations, and at the same.
const EVERY: u64 = 4;
const COURSE: &str = "effective_batch = 8\nsteps = 45\nsave_every = 3\neval_every = 4\nkeep = 2\nclip_norm = 1.0\n";

/// A sort of run: an optimizer, and whether checkpoints are written in the background.
#[derive(Clone, Copy, Debug)]
struct Lane {
    optimizer: &'static str,
    snapshot: bool,
}

const ADAMW: &str = "{ name = \"adamw\", lr = 3e-3, weight_decay = 0.01 }";
const ADAFACTOR: &str = "{ name = \"adafactor\", lr = 3e-3, beta1 = 0.9 }";
const LANES: [Lane; 4] = [
    Lane { optimizer: ADAMW, snapshot: false },
    Lane { optimizer: ADAMW, snapshot: true },
    Lane { optimizer: ADAFACTOR, snapshot: false },
    Lane { optimizer: ADAFACTOR, snapshot: true },
];

impl Lane {
    fn workshop(self) -> Workshop {
        let workshop = Workshop::new();
        let Lane { optimizer, snapshot } = self;
        workshop.job(&format!("{COURSE}optimizer = {optimizer}\n{PINS}snapshot = {snapshot}\n"));
        workshop
    }

    /// The run that nobody touched, and the processor time that its worker took. Who writes its checkpoints is no matter
    /// of results, so one that waits for them stands for both sorts.
    fn reference(self) -> &'static (Result, Duration) {
        static REFERENCES: [OnceLock<(Result, Duration)>; 2] = [const { OnceLock::new() }; 2];
        REFERENCES[usize::from(self.optimizer == ADAMW)].get_or_init(|| {
            let workshop = Lane { snapshot: false, ..self }.workshop();
            let mut trainer = Trainer::train(&workshop, "run");
            let mut life = Duration::ZERO;
            while !trainer.has_ended() {
                life = trainer.find_worker().and_then(work_of).unwrap_or(life);
                std::thread::sleep(BETWEEN);
            }
            trainer.end().must(0, &["done: 45 steps"]);
            (Result::of(&workshop.path("run")), life)
        })
    }

    fn must_be_untouched(self, run: &Path, told: &str) {
        Result::of(run).must_equal(&self.reference().0, &format!("{self:?}, {told}"));
    }
}

#[derive(Clone, Copy, Debug)]
enum Victim {
    Worker,
    Supervisor,
    Both,
    /// The supervisor, and the worker that it leaves so many looks later, while that saves.
    OneAfterTheOther(u64),
}

impl Victim {
    fn any(chance: &mut Chance) -> Victim {
        let looks = chance.below(60);
        chance.one_of(&[Victim::Worker, Victim::Supervisor, Victim::Both, Victim::OneAfterTheOther(looks)])
    }
}

/// What kills met, by what they left behind.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    moments: usize,
    workers: usize,
    supervisors: usize,
    before_the_first_step: usize,
    in_a_save: usize,
    in_a_removal: usize,
    in_an_evaluation: usize,
    at_the_end: usize,
    given_up: usize,
    runs: usize,
}

/// One run under fire.
struct Target<'a> {
    workshop: &'a Workshop,
    run: String,
    trainer: Trainer,
    shelf: Shelf,
    /// How many records the journal had at the last look.
    noted: usize,
    met: Met,
}

impl Target<'_> {
    /// Strikes, looks at what is left before anybody goes on, and sees to it that somebody does.
    fn strike(&mut self, victim: Victim, told: &str) {
        let supervisor = Pid::from_raw(self.trainer.id() as i32).unwrap();
        // Halted, it starts no other worker until what the kill left has been looked at.
        kill_process(supervisor, Signal::STOP).unwrap();
        let worker = self.trainer.find_worker().map(|pid| (pid, pidfd(pid)));
        if let (Victim::Worker, Some((pid, fd))) = (victim, &worker) {
            self.kill_worker(*pid, fd);
            self.look(told);
            kill_process(supervisor, Signal::CONT).unwrap();
            return;
        }
        if let (Victim::Both, Some((pid, fd))) = (victim, &worker) {
            self.kill_worker(*pid, fd);
        }
        // Between two workers there is nobody else to kill.
        self.trainer.signal(Signal::KILL);
        while !self.trainer.has_ended() {
            std::thread::sleep(BETWEEN);
        }
        if self.trainer.code().is_some() {
            // It had just ended by itself.
            return;
        }
        self.met.supervisors += 1;
        if let (Victim::OneAfterTheOther(looks), Some((pid, fd))) = (victim, &worker) {
            (0..looks).for_each(|_| std::thread::sleep(BETWEEN));
            self.kill_worker(*pid, fd);
        }
        // One that was not killed saves, and ends.
        worker.iter().for_each(|(_, fd)| wait_for_end(fd));
        self.look(told);
        self.go_on();
    }

    fn kill_worker(&mut self, pid: Pid, fd: &OwnedFd) {
        // Not the process id: by now that may be another's.
        match pidfd_send_signal(fd, Signal::KILL) {
            Ok(()) => self.met.workers += 1,
            Err(Errno::SRCH) => {}
            Err(error) => panic!("process {pid:?}: {error}"),
        }
        wait_for_end(fd);
    }

    /// Starts a supervisor in the place of one that has ended.
    fn go_on(&mut self) {
        let job = self.workshop.path(&self.run).join("job.toml");
        let begun = fs_err::metadata(&job).is_ok_and(|job| job.len() > 0);
        if !begun {
            // Killed before there was anything to resume.
            let _ = fs_err::remove_file(job);
        }
        let start = if begun { Trainer::resume } else { Trainer::train };
        self.trainer = start(self.workshop, &self.run);
    }

    fn look(&mut self, told: &str) {
        self.shelf.look(told);
        let (run, met) = (self.workshop.path(&self.run), &mut self.met);
        let left = self.shelf.leftovers();
        let there = |prefix: &str| {
            left.iter().any(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
        };
        let records = records(&run);
        let stepped = records[self.noted..].iter().any(|record| matches!(record.event, Event::Step { .. }));
        self.noted = records.len();
        // Saved, and not yet evaluated.
        let evaluating = matches!(
            records.last().map(|record| &record.event),
            Some(Event::Sample { at: plimsoll_watch::Moment::Save, step, .. }) if step.is_multiple_of(EVERY)
        );
        if there(".tmp-step-") {
            met.in_a_save += 1;
        } else if there(".old-step-") {
            met.in_a_removal += 1;
        } else if run.join(".model.partial").exists() || run.join("model").exists() {
            met.at_the_end += 1;
        } else if evaluating {
            met.in_an_evaluation += 1;
        } else if !stepped {
            met.before_the_first_step += 1;
        }
    }

    /// Sees a supervisor to its end that was not killed; whether the run is finished, or was given up and is resumed.
    fn ended(&mut self) -> bool {
        while !self.trainer.has_ended() {
            std::thread::sleep(BETWEEN);
        }
        let said = self.trainer.said();
        match self.trainer.code() {
            Some(0) => true,
            Some(1) if said.contains("giving up: ") => {
                self.met.given_up += 1;
                self.go_on();
                false
            }
            code => panic!("it ended with {code:?}: {said}"),
        }
    }
}

fn pidfd(pid: Pid) -> OwnedFd {
    pidfd_open(pid, PidfdFlags::empty()).unwrap()
}

/// Runs of one sort, one after the other, until they were struck at so many moments and the last run is finished.
fn under_fire(lane: Lane, moments: usize, chance: &mut Chance) -> Met {
    let (_, life) = lane.reference();
    let workshop = lane.workshop();
    let (mut met, mut sort) = (Met::default(), chance.below(100));
    while met.moments < moments {
        met.runs += 1;
        let run = format!("run-{}", met.runs);
        let (trainer, shelf) = (Trainer::train(&workshop, &run), Shelf::of(&workshop, &run, KEEP));
        let mut target = Target { workshop: &workshop, run, trainer, shelf, noted: 0, met };
        let mut struck = Vec::new();
        loop {
            if target.met.moments < moments {
                sort += 1;
                let moment = Moment::any(sort, chance, *life, EVERY);
                if moment.wait(&mut target.trainer) {
                    let victim = Victim::any(chance);
                    target.met.moments += 1;
                    struck.push(format!("{victim:?} at {moment:?}"));
                    target.strike(victim, &struck.join(", "));
                    continue;
                }
            }
            if target.ended() {
                break;
            }
        }
        target.shelf.look("at the end");
        assert_eq!(target.shelf.leftovers(), [] as [&Path; 0]);
        met = target.met;
        let folder = workshop.path(&target.run);
        lane.must_be_untouched(&folder, &struck.join(", "));
        for record in records(&folder) {
            if let Event::Incident { kind, .. } = record.event {
                assert_eq!(kind, "killed_unproven");
            }
        }
    }
    met
}

#[test]
fn killed_at_a_hundred_random_moments_runs_end_as_those_that_nobody_touched() {
    let seed = seed();
    println!("again with the same numbers: {SEED}={seed}");
    let all: Vec<Met> = std::thread::scope(|scope| {
        let fire = |(at, lane): (usize, &Lane)| {
            let lane = *lane;
            scope.spawn(move || under_fire(lane, MOMENTS / LANES.len(), &mut Chance::new(seed, at as u64)))
        };
        let lanes: Vec<_> = LANES.iter().enumerate().map(fire).collect();
        lanes.into_iter().map(|lane| lane.join().unwrap()).collect()
    });
    let sum = |of: fn(&Met) -> usize| all.iter().map(of).sum::<usize>();
    println!("{all:#?}");
    assert_eq!(sum(|met| met.moments), MOMENTS);
    // Kills that meet no save, or no planning, would prove little.
    for (told, met) in [
        ("workers", sum(|met| met.workers)),
        ("supervisors", sum(|met| met.supervisors)),
        ("before the first step", sum(|met| met.before_the_first_step)),
        ("in a save", sum(|met| met.in_a_save)),
    ] {
        assert!(met >= 3, "only {met} kills: {told}");
    }
}

/// Halts the worker when it has saved a step after `after`, and has steps to do; `None` when it is too late.
fn halted(trainer: &mut Trainer, after: u64) -> Option<Pid> {
    let newer = |record: &Record| matches!(record.event, Event::Saved { step, .. } if step > after);
    let worker = trainer.wait_for(|run| records(run).iter().any(newer)).find_worker()?;
    kill_process(worker, Signal::STOP).unwrap();
    if last_step(trainer.run()) <= 35 {
        return Some(worker);
    }
    kill_process(worker, Signal::CONT).unwrap();
    None
}

/// Lets a process write no file past `bytes`, or any.
fn limit_files(pid: Pid, bytes: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    prlimit(Some(pid), Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum }).unwrap();
}

/// A byte of the larger files of a checkpoint, behind all that the journal will hold.
fn any_byte(shelf: &mut Shelf, run: &Path, chance: &mut Chance) -> u64 {
    let manifest = shelf.look("halted").expect("it has saved");
    let longest = manifest.files.values().map(|file| file.bytes.0).max().expect("it has files");
    let least = fs_err::metadata(run.join("journal.jsonl")).unwrap().len() + (48 << 10);
    assert!(least < longest, "no checkpoint is longer than the journal: {least} and {longest}");
    least + chance.below(longest - least)
}

#[test]
fn a_worker_that_dies_at_any_byte_of_a_checkpoint_is_followed_by_one_that_goes_on() {
    let seed = seed();
    println!("again with the same numbers: {SEED}={seed}");
    let mut chance = Chance::new(seed, 100);
    for lane in [LANES[0], LANES[1]] {
        let workshop = lane.workshop();
        let (run, mut shelf) = (workshop.path("run"), Shelf::of(&workshop, "run", KEEP));
        let mut trainer = Trainer::train(&workshop, "run");
        // Each dies at a later step than the one before: who fails twice at the same step is rightly given up.
        let (mut deaths, mut reached) = (0, 0);
        while deaths < 4
            && let Some(worker) = halted(&mut trainer, reached)
        {
            let fd = pidfd(worker);
            let byte = any_byte(&mut shelf, &run, &mut chance);
            trainer.signal(Signal::STOP);
            limit_files(worker, Some(byte));
            kill_process(worker, Signal::CONT).unwrap();
            wait_for_end(&fd);
            shelf.look(&format!("died at byte {byte}"));
            let left: Vec<_> = shelf.leftovers().iter().flat_map(|left| fs_err::read_dir(left).unwrap()).collect();
            let lengths: Vec<u64> = left.into_iter().map(|file| file.unwrap().metadata().unwrap().len()).collect();
            assert!(lengths.contains(&byte), "{lengths:?} of a checkpoint that was cut at {byte}");
            (deaths, reached) = (deaths + 1, last_step(&run));
            trainer.signal(Signal::CONT);
        }
        assert!(deaths > 0, "the run was over too soon");
        trainer.end().must(0, &["killed by signal 25", "removed what an interrupted save left", "done: 45 steps"]);
        assert_eq!(shelf.leftovers(), [] as [&Path; 0]);
        lane.must_be_untouched(&run, "died inside a checkpoint");
        let incidents = records(&run).into_iter().filter(|r| matches!(r.event, Event::Incident { .. })).count();
        assert_eq!(incidents, deaths);
    }
}

#[test]
fn a_checkpoint_whose_file_may_not_grow_is_told_and_the_run_goes_on() {
    let seed = seed();
    println!("again with the same numbers: {SEED}={seed}");
    let mut chance = Chance::new(seed, 200);
    for lane in [LANES[0], LANES[1]] {
        let workshop = lane.workshop();
        let (run, mut shelf) = (workshop.path("run"), Shelf::of(&workshop, "run", KEEP));
        // Ignored, the signal becomes an error of the write.
        let mut trainer = Trainer::train_with(&workshop, "run", |command| {
            // SAFETY: between fork and exec only a disposition is set: no allocation, no lock.
            unsafe {
                command.pre_exec(|| {
                    libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                    Ok(())
                })
            };
        });
        let worker = halted(&mut trainer, 0).expect("the run was over too soon");
        let byte = any_byte(&mut shelf, &run, &mut chance);
        limit_files(worker, Some(byte));
        kill_process(worker, Signal::CONT).unwrap();
        let told = |run: &Path| records(run).iter().any(|r| matches!(r.event, Event::NotSaved { .. }));
        trainer.wait_for(told);
        shelf.look(&format!("not saved for byte {byte}"));
        limit_files(worker, None);
        trainer.end().must(0, &["is not saved: ", "stands; the run goes on", "done: 45 steps"]);
        shelf.look("at the end");
        assert_eq!(shelf.leftovers(), [] as [&Path; 0]);
        lane.must_be_untouched(&run, "one checkpoint could not be written");
    }
}
