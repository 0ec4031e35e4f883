//! The Slurm script: what bash makes of it, and what a controller of Slurm's own understands. Where Slurm is not installed the latter
//! is skipped, and said to be.

mod deployed;

use std::fmt::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Instant, SystemTime};

use deployed::{ODD, file, native, odd, skip, tool};
use plimsoll_deploy::{Deployment, Limit, Target, render};
use plimsoll_machine::Bytes;
use tempfile::TempDir;

/// How a script ended.
#[derive(Debug, PartialEq)]
struct Ended {
    code: Option<i32>,
    /// What the program noted.
    noted: String,
    requeued: bool,
    stderr: String,
}

impl Ended {
    fn how(&self) -> (Option<i32>, bool) {
        (self.code, self.requeued)
    }
}

/// Runs the script with a program of our own, and a `scontrol` that notes that it was called; sends each signal as soon as the program
/// has made the file `ready-N`. Neither Slurm nor plimsoll is under test here, but what bash makes of the script.
fn batch(deployment: &Deployment, program: &str, signals: &[&str], env: &[(&str, &str)]) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs_err::write(&path, text).unwrap();
        fs_err::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_string()
    };
    put("scontrol", &format!("#!/bin/bash\necho \"$@\" > {}/requeued\n", folder.path().display()));
    let program = put("a program", &format!("#!/bin/bash\n{program}\n"));
    let script = render(Target::Slurm, &Deployment { program, ..deployment.clone() }).unwrap();
    let script = put("job.sh", &script);
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(script);
    command.env("PATH", path).env("SLURM_JOB_ID", "77").env("NOTES", folder.path()).envs(env.iter().copied());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    for (n, signal) in signals.iter().enumerate() {
        until(|| folder.path().join(format!("ready-{n}")).exists());
        let sent = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
    let output = child.wait_with_output().unwrap();
    let read = |name: &str| fs_err::read_to_string(folder.path().join(name)).unwrap_or_default();
    Ended {
        code: output.status.code(),
        noted: read("words"),
        requeued: read("requeued") == "requeue 77\n",
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn until(done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed().as_secs() < 60, "it never came to be");
        std::thread::yield_now();
    }
}

/// Asked once, it takes a while, and ends with the code for a stop; asked twice, it would say so.
const SAVES: &str = "asked=0\ntrap 'asked=$((asked + 1))' TERM\n: > \"$NOTES/ready-0\"\n\
                     while [ $asked = 0 ]; do sleep 0.02; done\nsleep 0.2\necho $asked > \"$NOTES/words\"\nexit 4";
/// A start that lies this long back was not in vain.
const LATER: (&str, &str) = ("SECONDS", "100000");
/// This was its last start.
const OFTEN: (&str, &str) = ("SLURM_RESTART_COUNT", "3");

#[test]
fn bash_reads_the_words_and_the_folder_that_were_written() {
    let folder = tempfile::Builder::new().prefix("it's $HOME 100% \"a\" ").tempdir().unwrap();
    let deployment = Deployment { folder: folder.path().to_str().unwrap().into(), ..odd() };
    let note = "{ printf '%s\\0' \"$PWD\" \"$XDG_CACHE_HOME\" \"$@\"; } > \"$NOTES/words\"";
    let ended = batch(&deployment, note, &[], &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let read: Vec<&str> = ended.noted.split_terminator('\0').collect();
    assert_eq!(read[0], folder.path().to_str().unwrap());
    assert_eq!(read[1], odd().set[0].1);
    assert_eq!(read[2..], *ODD);
}

#[test]
fn a_job_that_cannot_fit_is_not_queued_again_and_a_killed_one_a_few_times() {
    for code in [0, 1, 2, 3] {
        assert_eq!(batch(&native(), &format!("exit {code}"), &[], &[]).how(), (Some(code), false));
    }
    // 4 without a request: it gave way to others, or another process still had the run.
    for (program, code) in [("kill -9 $$", 137), ("exit 4", 4)] {
        assert_eq!(batch(&native(), program, &[], &[]).how(), (Some(code), true));
        assert_eq!(batch(&native(), program, &[], &[OFTEN]).how(), (Some(code), false));
    }
}

#[test]
fn a_job_whose_time_is_over_saves_and_is_queued_again_and_a_cancelled_one_only_saves() {
    let over = batch(&native(), SAVES, &["USR1"], &[LATER, ("SLURM_RESTART_COUNT", "9")]);
    assert_eq!((over.how(), over.noted.as_str()), ((Some(4), true), "1\n"));
    let cancelled = batch(&native(), SAVES, &["TERM"], &[LATER]);
    assert_eq!((cancelled.how(), cancelled.noted.as_str()), ((Some(4), false), "1\n"));
}

#[test]
fn a_cancelled_job_stays_so_however_it_ends_and_whatever_comes_after() {
    // Before plimsoll listens, a request ends it as any program.
    let deaf = ": > \"$NOTES/ready-0\"\nwhile :; do sleep 0.02; done";
    assert_eq!(batch(&native(), deaf, &["TERM"], &[LATER]).how(), (Some(143), false));
    // Its time is over while it saves.
    let slow = "trap ': > \"$NOTES/ready-1\"' TERM\n: > \"$NOTES/ready-0\"\n\
                until [ -e \"$NOTES/ready-1\" ]; do sleep 0.02; done\nsleep 0.2\nexit 4";
    for signals in [["TERM", "USR1"], ["USR1", "TERM"]] {
        assert_eq!(batch(&native(), slow, &signals, &[LATER]).how(), (Some(4), false), "{signals:?}");
    }
}

#[test]
fn a_job_whose_time_is_all_needed_for_its_stop_is_not_queued_for_ever() {
    // The grace period is 589 s.
    let end = |seconds: u64| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        (now + seconds).to_string()
    };
    let notes = "echo started > \"$NOTES/words\"";
    let refused = batch(&native(), notes, &[], &[("SLURM_JOB_END_TIME", &end(600))]);
    assert_eq!((refused.how(), refused.noted.as_str()), ((Some(2), false), ""));
    assert!(refused.stderr.contains("a stop alone may take 589 s; give sbatch a longer --time"), "{refused:?}");
    assert_eq!(batch(&native(), notes, &[], &[("SLURM_JOB_END_TIME", &end(5000))]).noted, "started\n");
    // Where the end is not told, a stop right after the start shows it.
    let early = batch(&native(), SAVES, &["USR1"], &[("SECONDS", "0")]);
    assert_eq!((early.how(), early.noted.as_str()), ((Some(4), false), "1\n"));
    assert!(early.stderr.contains("is not queued again; give sbatch a longer --time"), "{early:?}");
    // Where it is, somebody had a reason for that.
    let told = batch(&native(), SAVES, &["USR1"], &[("SECONDS", "0"), ("SLURM_JOB_END_TIME", &end(5000))]);
    assert_eq!(told.how(), (Some(4), true), "{told:?}");
}

/// A controller of Slurm with one imagined node: 8 cores, 64000 MB, four cards. Nobody runs anything there.
struct Cluster {
    folder: TempDir,
    controller: Child,
}

impl Cluster {
    fn start() -> Result<Cluster, String> {
        // Without a cluster it tells nothing, not even its version.
        Command::new("sbatch").output().map_err(|error| format!("sbatch: {error}"))?;
        let program = tool(&[(&["slurmctld"], "-V"), (&["/usr/sbin/slurmctld"], "-V")])?;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let user = Command::new("id").arg("-un").output().unwrap();
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut conf = String::from(
            "ClusterName=here\nSlurmctldHost=localhost(127.0.0.1)\nAuthType=auth/none\nCredType=cred/none\nMpiDefault=none\n\
             ProctrackType=proctrack/linuxproc\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory\n\
             GresTypes=gpu\nSuspendProgram=/bin/true\nResumeProgram=/bin/true\n\
             NodeName=imagined CPUs=8 RealMemory=64000 Gres=gpu:4 State=CLOUD\n\
             PartitionName=all Nodes=imagined Default=YES MaxTime=INFINITE State=UP\n",
        );
        let lines = [
            ("SlurmUser", String::from_utf8(user.stdout).unwrap().trim().to_string()),
            ("SlurmctldPort", free().to_string()),
            ("SlurmdPort", free().to_string()),
            ("StateSaveLocation", at("")),
            ("SlurmctldPidFile", at("pid")),
        ];
        lines.iter().for_each(|(key, value)| writeln!(conf, "{key}={value}").unwrap());
        fs_err::write(at("slurm.conf"), conf).unwrap();
        fs_err::write(at("gres.conf"), "NodeName=imagined Name=gpu Count=4\n").unwrap();
        let log = fs_err::File::create(at("log")).unwrap().into_parts().0;
        let mut command = Command::new(&program[0]);
        command.args(["-D", "-c"]).env("SLURM_CONF", at("slurm.conf")).stdout(log.try_clone().unwrap()).stderr(log);
        let mut cluster = Cluster { controller: command.spawn().unwrap(), folder };
        let started = Instant::now();
        while !cluster.ask("sinfo", &["--noheader"]).status.success() {
            assert!(started.elapsed().as_secs() < 60, "the controller of Slurm does not answer");
            if cluster.controller.try_wait().unwrap().is_some() {
                let log = fs_err::read_to_string(cluster.folder.path().join("log")).unwrap();
                return Err(format!("no controller of Slurm starts here: {}", log.lines().last().unwrap_or_default()));
            }
        }
        Ok(cluster)
    }

    fn ask(&self, program: &str, words: &[&str]) -> Output {
        self.command(program, words).output().unwrap()
    }

    fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words).current_dir(self.folder.path()).env("SLURM_CONF", self.folder.path().join("slurm.conf"));
        command
    }

    /// The environment that a job will start with, as the controller keeps it: a count, and texts that end with a zero byte.
    fn environment(&self, id: u64) -> Vec<String> {
        let path = format!("hash.{}/job.{id}/environment", id % 10);
        let kept = fs_err::read(self.folder.path().join(path)).unwrap();
        let texts = kept[4..].split(|byte| *byte == 0).filter(|text| !text.is_empty());
        texts.map(|text| String::from_utf8_lossy(text).into_owned()).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.controller.kill();
        let _ = self.controller.wait();
    }
}

fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn script(deployment: &Deployment) -> (TempDir, String) {
    let (folder, path) = file("job.sbatch", &render(Target::Slurm, deployment).unwrap());
    (folder, path.to_str().unwrap().to_string())
}

#[test]
fn slurm_would_run_the_job_and_refuses_what_its_nodes_do_not_have() {
    let cluster = match Cluster::start() {
        Ok(cluster) => cluster,
        Err(why) => return skip(&why),
    };
    let tested = |deployment: Deployment| {
        let (_folder, path) = script(&deployment);
        cluster.ask("sbatch", &["--test-only", &path])
    };
    let fits = [native(), odd(), Deployment { cores: 8, memory: Limit::over(Bytes::gib(58), "plan"), ..odd() }];
    for deployment in fits {
        let cores = deployment.cores;
        let output = tested(deployment);
        assert!(output.status.success(), "{}", text_of(&output));
        assert!(
            text_of(&output).contains(&format!("using {cores} processors on nodes imagined")),
            "{}",
            text_of(&output)
        );
    }
    let beyond = [
        Deployment { cores: 9, ..native() },
        Deployment { cards: 5, ..native() },
        Deployment { memory: Limit::over(Bytes::gib(60), "plan"), ..native() },
    ];
    for deployment in beyond {
        assert!(text_of(&tested(deployment)).contains("Requested node configuration is not available"));
    }
}

#[test]
fn slurm_understands_what_the_script_asks_for() {
    let cluster = match Cluster::start() {
        Ok(cluster) => cluster,
        Err(why) => return skip(&why),
    };
    let (_folder, path) = script(&odd());
    let queued = cluster.ask("sbatch", &["--hold", "--parsable", &path]);
    assert!(queued.status.success(), "{}", text_of(&queued));
    let id = String::from_utf8(queued.stdout).unwrap();
    let shown = text_of(&cluster.ask("scontrol", &["--oneliner", "show", "job", id.trim()]));
    let wanted =
        ["JobName=chat", "Requeue=1", "CPUs/Task=4", "MinMemoryNode=3344M", "TresPerNode=gres:gpu:4", "NumTasks=1"];
    for word in wanted {
        assert!(shown.split_whitespace().any(|shown| shown == word), "no `{word}` in\n{shown}");
    }
    assert_eq!(
        text_of(&cluster.ask("scontrol", &["write", "batch_script", id.trim(), "-"])),
        render(Target::Slurm, &odd()).unwrap()
    );
}

#[test]
fn slurm_takes_along_what_programs_on_cards_need_and_what_is_not_set_does_no_harm() {
    let cluster = match Cluster::start() {
        Ok(cluster) => cluster,
        Err(why) => return skip(&why),
    };
    let (_folder, path) = script(&Deployment { variables: vec!["HF_TOKEN".into(), "TMPDIR".into()], ..native() });
    let set = [
        ("LD_LIBRARY_PATH", "/opt/cuda/lib64:/opt/nccl"),
        ("CUDA_HOME", "/opt/cuda"),
        ("CUDA_PATH", "/opt/cuda"),
        ("VIRTUAL_ENV", "/opt/env"),
        ("PYTHONPATH", "/opt/a b"),
        ("XDG_CACHE_HOME", "/scratch/cache"),
        ("XDG_STATE_HOME", "/scratch/state"),
        ("TMPDIR", "/scratch/tmp"),
        ("HF_TOKEN", "by-name"),
    ];
    let unset = ["CONDA_PREFIX", "XDG_CONFIG_HOME"];
    let mut command = cluster.command("sbatch", &["--hold", "--parsable", &path]);
    for name in unset {
        command.env_remove(name);
    }
    let queued = command.envs(set).env("OF_NOBODY", "x").output().unwrap();
    assert!(queued.status.success() && queued.stderr.is_empty(), "{}", text_of(&queued));
    let kept = cluster.environment(String::from_utf8(queued.stdout).unwrap().trim().parse().unwrap());
    for (name, value) in set {
        assert!(kept.contains(&format!("{name}={value}")), "no `{name}` in {kept:?}");
    }
    for name in unset.iter().chain(&["OF_NOBODY"]) {
        assert!(!kept.iter().any(|line| line.starts_with(&format!("{name}="))), "`{name}` in {kept:?}");
    }
}
