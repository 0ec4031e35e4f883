//! One start of a foreign trainer, watched: its log, its processes, its memory, its motion, its checkpoints.
//!
//! Four looks a second take the log and the memory of the cgroup, one a second the processes; fair shares and cards are
//! read every 30 s. What is odd is said once.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_launch::checkpoints::{self, Found};
use plimsoll_launch::failure::RankProcess;
use plimsoll_launch::stall::{Motion, RankPulse, Stall};
use plimsoll_launch::telling::Listener;
use plimsoll_launch::trainer::Ask;
use plimsoll_launch::verify::{self, Finding, Saved};
use plimsoll_launch::{Command, Knob, Role};
use plimsoll_machine::{Bytes, Cards, Headroom, Root};
use plimsoll_recover::leaf::Leaf;
use plimsoll_recover::sampler::{Look, Sampler};
use plimsoll_recover::witness::Witness;
use plimsoll_recover::{Keeper, Kin, TreeWish};
use plimsoll_watch::{Event, Journal, Member, Moment};

use super::charge::Charge;
use super::logs::Logs;
use super::ready::{Ready, own_checkpoints};
use super::tree::Tree;
use crate::guard::seen;
use crate::render;

/// Looks between two samples of fair shares and cards: 30 s. They cost a walk over all page tables.
const SHARES: u64 = 120;
/// Looks at which fair shares are read too: a start changes much.
const EARLY: [u64; 3] = [12, 28, 60];
/// The look after which everything has been done once: 20 s.
const SETTLED_DOWN: u64 = 80;
/// Looks between two samples in the journal: 30 s.
const NOTED: u64 = 120;
/// Looks between two looks at checkpoints: 5 s.
const CHECKPOINTS: u64 = 20;
/// Looks between two records of progress: 5 s.
const PROGRESS: u64 = 20;
/// How long a launcher is given to deal with a rank that is gone.
const LAUNCHER_REACTS: Duration = Duration::from_secs(4);
/// Ranks that compute without a word or a step for so long, once another is gone, wait for it.
const SILENT: Duration = Duration::from_secs(60);
/// A stopped rank is waited for so long before the tree is ended.
const STOPPED_FOR: Duration = Duration::from_secs(30);
/// Without progress in the log, what runs is judged after this time.
const SETTLED: Duration = Duration::from_secs(60);

/// Why the tree's end was wished.
#[derive(Clone, Debug, PartialEq)]
pub enum Wished {
    /// A rank is gone, and the others wait for it.
    RankGone,
    /// Nothing moves.
    Stalled,
    /// It did not go on from its checkpoint.
    NotRestored,
    /// There is room again for the settings of before.
    StepUp,
}

/// When a run that gave way to a neighbour may step up again.
#[derive(Clone, Copy, Debug)]
pub struct Climb {
    /// What must be free.
    pub room: Bytes,
    /// For how long.
    pub calm: Duration,
}

/// A start, watched.
pub struct Watch {
    pub root: Root,
    pub leaf: Option<Leaf>,
    pub witness: Witness,
    pub journal: Option<Journal>,
    pub listener: Listener,
    pub logs: Logs,
    pub tree: Tree,
    pub last: Option<Look>,
    /// What the tree takes.
    now: Bytes,
    /// Of it, mapped files, when last looked at.
    files: Bytes,
    /// The most that the tree took.
    pub peak: Bytes,
    /// The most that it took on all cards.
    pub peak_vram: Bytes,
    /// The limit of its cgroup.
    pub limit: Option<Bytes>,
    pub wished: Option<Wished>,
    pub gone: Vec<RankProcess>,
    pub stopped: Vec<RankProcess>,
    pub idle: Vec<RankProcess>,
    pub still_for: Option<Duration>,
    pub world_seen: u64,
    pub pid: u32,
    /// What the journal is told when it has started.
    pub first_words: Vec<Event>,
    command: Command,
    charge: Charge,
    kin: Kin,
    sampler: Option<Sampler>,
    cards: Option<Cards>,
    headroom: Option<Headroom>,
    world_asked: Option<u64>,
    deepspeed_asked: bool,
    from: Option<Found>,
    began: Instant,
    looks: u64,
    stall: Stall,
    first_gone: Option<Instant>,
    /// Lines and step when last heard of, and when that was.
    heard: ((u64, Option<u64>), Instant),
    told_stopped: bool,
    told_step: Option<u64>,
    judged: Vec<&'static str>,
    named: BTreeSet<(u32, Role)>,
    saved: Vec<PathBuf>,
    climb: Option<Climb>,
    room_since: Option<Instant>,
}

impl Watch {
    pub fn new(
        run: &Path,
        charge: &Charge,
        ready: &Ready,
        leaf: Option<Leaf>,
        logs: Logs,
        climb: Option<Climb>,
    ) -> Watch {
        let root = Root::system();
        let witness = Witness::begin(&root, leaf.as_ref());
        let kin = Kin::new(&root, leaf.as_ref());
        Watch {
            listener: Listener::new(ready.command.layers()),
            sampler: Sampler::new(&root, run).ok(),
            headroom: Headroom::find(&root).ok(),
            cards: match Cards::open() {
                plimsoll_machine::Sighting::Seen(cards) => Some(cards),
                plimsoll_machine::Sighting::Unseen { .. } => None,
            },
            world_asked: ready.count(Knob::Processes),
            deepspeed_asked: ready.command.asks_for_deepspeed(),
            saved: own_checkpoints(&ready.command, charge).into_iter().map(|found| found.path).collect(),
            journal: Journal::append(&run.join("journal.jsonl")).ok(),
            from: ready.from.clone(),
            command: ready.command.clone(),
            charge: charge.clone(),
            root,
            leaf,
            witness,
            kin,
            logs,
            tree: Tree::default(),
            last: None,
            now: Bytes::ZERO,
            files: Bytes::ZERO,
            peak: Bytes::ZERO,
            peak_vram: Bytes::ZERO,
            limit: None,
            wished: None,
            gone: Vec::new(),
            stopped: Vec::new(),
            idle: Vec::new(),
            still_for: None,
            world_seen: 0,
            pid: 0,
            first_words: Vec::new(),
            began: Instant::now(),
            looks: 0,
            stall: Stall::default(),
            first_gone: None,
            heard: ((0, None), Instant::now()),
            told_stopped: false,
            told_step: None,
            judged: Vec::new(),
            named: BTreeSet::new(),
            climb,
            room_since: None,
        }
    }

    /// How the members of the tree are found.
    pub fn kin(&self) -> Kin {
        self.kin.clone()
    }

    /// A journal that cannot be written stops nobody.
    pub fn note(&mut self, event: &Event) {
        if let Some(journal) = &mut self.journal {
            let _ = journal.record(event);
        }
    }

    fn step(&self) -> u64 {
        self.listener.told().step.unwrap_or(0)
    }

    fn warn(&mut self, message: String) {
        render::talk(format!("plimsoll: {message}"));
        self.note(&Event::Warning { step: self.step(), message });
    }

    /// What the tree takes: what its cgroup holds beside files, and its fair share of mapped files; without a cgroup, the
    /// sum of fair shares. The peak counts what happened between two looks as well.
    fn weigh(&mut self) {
        let shares = self.looks.is_multiple_of(SHARES) || EARLY.contains(&self.looks);
        if shares {
            let (members, files) = self.tree.members(&self.root, self.cards.as_ref());
            let sum = |of: fn(&Member) -> Bytes| members.iter().map(of).sum::<Bytes>();
            let pss = sum(|member| member.pss_bytes.unwrap_or(member.rss_bytes));
            self.peak_vram = self.peak_vram.max(sum(|member| member.vram_bytes.unwrap_or_default()));
            match self.leaf {
                Some(_) => self.files = files,
                None => self.now = pss,
            }
            self.note(&Event::Tree { ram_bytes: self.now, processes: members });
        }
        if let Some(Ok(bytes)) = self.leaf.as_ref().map(Leaf::without_files) {
            self.now = bytes + self.files;
        }
        self.peak = self.peak.max(self.now + self.tree.burst(&self.root));
    }

    fn look_at_processes(&mut self) -> TreeWish {
        let pids = self.kin.members();
        let gone = self.tree.look(&self.root, &pids, self.pid);
        for seen in self.tree.roles().collect::<Vec<_>>() {
            // Who is known by that role is not looked up again every second.
            if self.named.insert(seen) {
                self.witness.saw(&seen.1.to_string(), seen.0);
            }
        }
        self.world_seen = self.world_seen.max(self.tree.world());
        for one in gone {
            self.gone.push(RankProcess { rank: one.rank, pid: Some(one.pid) });
            if !self.listener.told().done {
                self.first_gone.get_or_insert_with(Instant::now);
            }
        }
        self.note_sample();
        self.feel()
    }

    fn note_sample(&mut self) {
        let Some(sampler) = &mut self.sampler else { return };
        let Ok(look) = sampler.look(self.pid, self.began.elapsed(), self.leaf.as_ref()) else { return };
        self.last = Some(look);
        if self.looks.is_multiple_of(NOTED) {
            let ram_bytes = self.now;
            self.note(&Event::Sample { at: Moment::Tick, step: self.step(), ram_bytes, seen: seen(&look.sample) });
        }
    }

    /// Whether it moves, and what follows where it does not.
    fn feel(&mut self) -> TreeWish {
        let told = self.listener.told();
        let pulse = self.tree.pulse(self.began.elapsed(), told.lines, told.step);
        let after = Duration::from_secs(self.charge.stall_after.max(1));
        // Once a rank is gone, those that only wait for it are not waited for.
        if let Some(first) = self.first_gone
            && first.elapsed() >= LAUNCHER_REACTS
            && !pulse.ranks.is_empty()
        {
            let waiting = self.stall.feel(&pulse, LAUNCHER_REACTS);
            // A library may wait at full speed: then only its silence tells.
            if self.heard.0 != (pulse.lines, pulse.step) {
                self.heard = ((pulse.lines, pulse.step), Instant::now());
            }
            let silent = self.heard.1.elapsed() >= SILENT;
            if waiting != Motion::Moves || silent {
                let names: Vec<String> = self.gone.iter().map(|one| format!("rank {}", one.rank)).collect();
                self.warn(format!("{} is gone and the others wait for it; ending all of them", names.join(", ")));
                return self.wish(Wished::RankGone, TreeWish::Kill);
            }
            return TreeWish::GoOn;
        }
        match self.stall.feel(&pulse, after) {
            Motion::Moves => {
                self.told_stopped = false;
                TreeWish::GoOn
            }
            Motion::Stopped { rank, since } => {
                if !self.told_stopped {
                    self.told_stopped = true;
                    self.warn(format!(
                        "rank {} (process {}) has been stopped for {} s; the others wait for it without a word",
                        rank.rank,
                        rank.pid,
                        since.as_secs()
                    ));
                }
                if since < STOPPED_FOR.min(after) {
                    return TreeWish::GoOn;
                }
                self.stopped = vec![process(rank)];
                self.still_for = Some(since);
                self.wish(Wished::Stalled, TreeWish::Kill)
            }
            Motion::Still { since, idle } => {
                self.warn(format!("no rank has computed, written or stepped for {} s; ending all", since.as_secs()));
                self.idle = idle.into_iter().map(process).collect();
                self.still_for = Some(since);
                self.wish(Wished::Stalled, TreeWish::Kill)
            }
        }
    }

    fn wish(&mut self, why: Wished, wish: TreeWish) -> TreeWish {
        self.wished.get_or_insert(why);
        wish
    }

    /// Compares what was asked with what runs, each once.
    pub fn verify(&mut self, at_the_end: bool) -> TreeWish {
        let told = self.listener.told().clone();
        let settled = at_the_end || told.first_step.is_some() || told.done || self.began.elapsed() >= SETTLED;
        if let Some(from) = self.from.clone()
            && !self.judged.contains(&"restored")
        {
            let counts_on = self.command.layers().find(|layer| !layer.log.progress.is_empty());
            let counts_on = counts_on.is_some_and(|layer| layer.log.counts_on);
            if let Some(finding) = verify::restored(&told, from.step, counts_on) {
                let fine = finding.fine;
                self.found(finding);
                if !fine {
                    return self.wish(Wished::NotRestored, TreeWish::Kill);
                }
            }
        }
        if !settled {
            return TreeWish::GoOn;
        }
        if let Some(asked) = self.world_asked.filter(|_| self.world_seen > 0 && !self.judged.contains(&"world")) {
            self.found(verify::world(asked, self.world_seen));
        }
        if self.deepspeed_asked
            && !self.judged.contains(&"deepspeed")
            && let Some(finding) = verify::deepspeed(&told, self.saved_how())
        {
            self.found(finding);
        }
        TreeWish::GoOn
    }

    /// The last checkpoint, as far as DeepSpeed is concerned.
    fn saved_how(&self) -> Saved {
        let sharded = |path: &PathBuf| {
            let inner = |entry: std::io::Result<fs_err::DirEntry>| {
                entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("global_step"))
            };
            let own = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("global_step"));
            own || fs_err::read_dir(path).is_ok_and(|mut entries| entries.any(inner))
        };
        match self.saved.last() {
            None => Saved::Nothing,
            Some(path) if sharded(path) => Saved::Sharded,
            Some(_) => Saved::Plain,
        }
    }

    fn found(&mut self, finding: Finding) {
        let Finding { what, asked, seen, fine } = finding;
        self.judged.push(what);
        if !fine {
            render::talk(format!("plimsoll: not as asked: {asked} was asked for, but: {seen}"));
        }
        self.note(&Event::Verified { what: what.to_string(), asked, seen, fine });
    }

    /// Notes new whole checkpoints; whether there is one.
    pub fn look_at_checkpoints(&mut self) -> bool {
        let found = own_checkpoints(&self.command, &self.charge);
        let new: Vec<Found> =
            found.into_iter().filter(|one| one.torn.is_none() && !self.saved.contains(&one.path)).collect();
        let any = !new.is_empty();
        for one in new {
            let bytes = checkpoints::size(&one.path);
            let step = one.step.unwrap_or_else(|| self.step());
            let (path, reason) = (one.path.clone(), plimsoll_watch::SaveReason::Steps);
            self.saved.push(one.path);
            self.note(&Event::Saved { step, path, bytes, seconds: 0.0, waited_seconds: 0.0, reason });
        }
        any
    }

    /// Notes the step where it has changed.
    pub fn note_progress(&mut self) {
        let told = self.listener.told();
        let (step, total, loss) = (told.step, told.total, told.loss);
        if let Some(step) = step.filter(|step| self.told_step != Some(*step)) {
            self.told_step = Some(step);
            self.note(&Event::Progress { step, total, loss });
        }
    }

    /// Whether there has been room for the larger settings for long enough.
    fn may_climb(&mut self) -> bool {
        let (Some(climb), Some(headroom)) = (self.climb, &self.headroom) else { return false };
        let free = headroom.read().unwrap_or_default();
        if free < climb.room {
            self.room_since = None;
            return false;
        }
        self.room_since.get_or_insert_with(Instant::now).elapsed() >= climb.calm
    }
}

fn process(rank: RankPulse) -> RankProcess {
    RankProcess { rank: rank.rank, pid: Some(rank.pid) }
}

impl Keeper for Watch {
    fn started(&mut self, pid: u32) {
        self.pid = pid;
        self.witness.saw("main", pid);
        let own = self.witness.started().processes.first().map(|process| process.nspid.clone()).unwrap_or_default();
        for mut event in std::mem::take(&mut self.first_words) {
            if let Event::WorkerStarted { pid: number, nspid, .. } = &mut event {
                (*number, *nspid) = (pid, own.clone());
            }
            self.note(&event);
        }
    }

    fn look(&mut self) -> TreeWish {
        self.looks += 1;
        self.logs.read(&mut self.listener);
        self.weigh();
        // What the start needed of the program is needed no more.
        if self.looks == SETTLED_DOWN {
            plimsoll_recover::protect::settle();
        }
        if self.wished.is_some() {
            return TreeWish::GoOn;
        }
        if self.looks.is_multiple_of(PROGRESS) {
            self.note_progress();
        }
        if self.looks.is_multiple_of(CHECKPOINTS) {
            let saved = self.look_at_checkpoints();
            // Right after a save nothing is lost.
            if saved && self.may_climb() {
                return self.wish(Wished::StepUp, TreeWish::Stop);
            }
            if !saved {
                self.may_climb();
            }
        }
        let wish = self.verify(false);
        if wish != TreeWish::GoOn {
            return wish;
        }
        if self.looks.is_multiple_of(4) || self.looks < 4 { self.look_at_processes() } else { TreeWish::GoOn }
    }

    fn whom_to_ask(&mut self) -> Vec<u32> {
        let everyone = self.command.layers().any(|layer| layer.stop.ask == Ask::Everyone);
        if everyone { self.tree.to_ask() } else { vec![self.pid] }
    }
}

/// The newest whole checkpoint of a command, and how many there are.
pub fn newest(command: &Command, charge: &Charge) -> (Option<Found>, usize) {
    let found = own_checkpoints(command, charge);
    let whole = found.iter().filter(|one| one.torn.is_none()).count();
    (checkpoints::latest_whole(&found).cloned(), whole)
}
