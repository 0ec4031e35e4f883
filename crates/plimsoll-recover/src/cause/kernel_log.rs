//! The kernel's log: whom its OOM killer killed and why, faults, failing disks.
//!
//! Total: any text gives an answer, lines of other subjects are passed over, nothing panics. Prefixes (`dmesg` times,
//! `/dev/kmsg` fields, syslog's host names) are skipped by looking for the message itself. Process numbers are those of
//! the machine's first PID namespace; whether they are ours is decided elsewhere.

use plimsoll_machine::Bytes;

/// Whose limit the kernel enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A memory cgroup's.
    Cgroup,
    /// The machine's (or a NUMA node's or cpuset's).
    Host,
    /// The line does not say.
    Unsaid,
}

/// A process that the kernel killed for want of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelKill {
    /// Whose limit.
    pub scope: Scope,
    /// Its number in the first PID namespace.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Its memory by sort, where the log says.
    pub resident: Option<Resident>,
    /// The cgroup whose limit was hit.
    pub oom_memcg: Option<String>,
    /// The cgroup it was in.
    pub task_memcg: Option<String>,
    /// The line that told of the kill.
    pub line: String,
}

/// Resident memory by sort: `anon` is heap, `shmem` pinned memory and `/dev/shm`, `file` mapped files (harmless).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Heap, stacks, private copies.
    pub anon: Bytes,
    /// Mapped files.
    pub file: Bytes,
    /// Shared and pinned memory; old kernels do not say it.
    pub shmem: Option<Bytes>,
}

/// What a kernel log tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelStory {
    /// OOM kills, in order.
    pub kills: Vec<KernelKill>,
    /// Cgroups killed whole because of `memory.oom.group`.
    pub groups: Vec<String>,
    /// Faults: (process, line).
    pub faults: Vec<(u32, String)>,
    /// Lines of failing disks and file systems.
    pub disk_errors: Vec<String>,
    /// The line of a panic for want of memory (`vm.panic_on_oom`).
    pub oom_panic: Option<String>,
}

/// Reads a kernel log.
pub fn parse_kernel_log(text: &str) -> KernelStory {
    let mut story = KernelStory::default();
    // Kernels before 5.3 first name whom they chose, then, without the scope, whom they killed: it or a child of it.
    let mut chosen: Option<KernelKill> = None;
    let mut context: Option<OomContext> = None;
    for line in text.lines() {
        let line = line.trim_end();
        if let Some(read) = parse_context(line) {
            context = Some(read);
        } else if let Some(kill) = parse_killed(line, "Kill process ") {
            story.kills.extend(chosen.replace(kill));
        } else if let Some(mut kill) = parse_killed(line, "Killed process ") {
            if let Some(first) = chosen.take()
                && kill.scope == Scope::Unsaid
            {
                kill.scope = first.scope;
            }
            // A line of context belongs to the kill that follows it, and to all of a group kill.
            if let Some(context) = &context {
                if context.pid == kill.pid {
                    kill.task_memcg = Some(context.task_memcg.clone());
                }
                kill.oom_memcg.clone_from(&context.oom_memcg);
                if kill.scope == Scope::Unsaid {
                    kill.scope = context.scope;
                }
            }
            story.kills.push(kill);
        } else if let Some(path) = between(line, "Tasks in ", " are going to be killed due to memory.oom.group set") {
            story.groups.push(path.to_string());
        } else if line.contains("Kernel panic - not syncing: Out of memory")
            || line.contains("Kernel panic - not syncing: System is deadlocked on memory")
        {
            story.oom_panic = Some(line.to_string());
        } else if let Some(pid) = fault_pid(line) {
            story.faults.push((pid, line.to_string()));
        } else if is_disk_error(line) {
            story.disk_errors.push(line.to_string());
        }
    }
    story.kills.extend(chosen);
    // A victim whose own line was lost is still named by the line of context.
    if let Some(context) = context
        && !story.kills.iter().any(|kill| kill.pid == context.pid)
    {
        story.kills.push(KernelKill {
            scope: context.scope,
            pid: context.pid,
            comm: context.comm,
            resident: None,
            oom_memcg: context.oom_memcg,
            task_memcg: Some(context.task_memcg),
            line: context.line,
        });
    }
    story
}

/// `oom-kill:constraint=...`.
struct OomContext {
    scope: Scope,
    oom_memcg: Option<String>,
    task_memcg: String,
    comm: String,
    pid: u32,
    line: String,
}

fn parse_context(line: &str) -> Option<OomContext> {
    let fields = after(line, "oom-kill:constraint=")?;
    let constraint = fields.split(',').next()?;
    // A cgroup's name may hold a comma, so each value runs to the next key, not to the next comma.
    let task_memcg = between(fields, ",task_memcg=", ",task=")?;
    let tail = after(fields, ",task=")?;
    let (comm, numbers) = tail.rsplit_once(",pid=")?;
    let pid = leading_number(numbers)?;
    let scope = if constraint == "CONSTRAINT_MEMCG" { Scope::Cgroup } else { Scope::Host };
    let oom_memcg = between(fields, ",oom_memcg=", ",task_memcg=").map(str::to_string);
    let (task_memcg, comm) = (task_memcg.to_string(), comm.to_string());
    Some(OomContext { scope, oom_memcg, task_memcg, comm, pid: u32::try_from(pid).ok()?, line: line.to_string() })
}

/// `[scope: ]Kill(ed) process 42 (comm)...`, also with `, UID 1000,` before or after the name.
fn parse_killed(line: &str, verb: &str) -> Option<KernelKill> {
    let at = line.find(verb)?;
    let (head, rest) = (&line[..at], &line[at + verb.len()..]);
    let scope = if head.contains("Memory cgroup out of memory") {
        Scope::Cgroup
    } else if head.contains("Out of memory") {
        Scope::Host
    } else {
        Scope::Unsaid
    };
    let pid = u32::try_from(leading_number(rest)?).ok()?;
    let open = rest.find('(')?;
    // A name may hold brackets: it ends at the last one before the figures.
    let figures = [" total-vm:", " score ", ", UID "];
    let body = &rest[open + 1..];
    let end = figures.iter().filter_map(|mark| body.find(mark)).min().unwrap_or(body.len());
    let comm = &body[..body[..end].rfind(')')?];
    let resident = (|| {
        let anon = kib(body, "anon-rss:")?;
        Some(Resident { anon, file: kib(body, "file-rss:")?, shmem: kib(body, "shmem-rss:") })
    })();
    let (comm, line) = (comm.to_string(), line.to_string());
    Some(KernelKill { scope, pid, comm, resident, oom_memcg: None, task_memcg: None, line })
}

/// `name[42]: segfault at ...` and `traps: name[42] general protection fault ...`.
fn fault_pid(line: &str) -> Option<u32> {
    let at = line.find("]: segfault at ").or_else(|| {
        let traps = line.find("traps: ")?;
        let fault = [" general protection", " trap invalid opcode", " trap divide error", " trap stack segment"];
        let end = fault.iter().filter_map(|mark| line[traps..].find(mark)).min()?;
        line[..traps + end].rfind(']')
    })?;
    let open = line[..at].rfind('[')?;
    line[open + 1..at].parse().ok()
}

fn is_disk_error(line: &str) -> bool {
    const MARKS: [&str; 9] = [
        "I/O error, dev ",
        "Buffer I/O error on dev",
        "EXT4-fs error",
        "Remounting filesystem read-only",
        "XFS (",
        "BTRFS error",
        "critical medium error",
        "Unrecovered read error",
        "I/O Cmd(",
    ];
    let told = MARKS.iter().any(|mark| line.contains(mark));
    // XFS and NVMe write of other matters in the same form.
    told && !(line.contains("XFS (") && !line.contains("I/O error") && !line.contains("Shutting down filesystem"))
}

fn kib(text: &str, key: &str) -> Option<Bytes> {
    let rest = after(text, key)?;
    let number = leading_number(rest)?;
    number.checked_mul(1024).map(Bytes)
}

fn leading_number(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

fn after<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.split_once(mark).map(|(_, rest)| rest)
}

fn between<'a>(text: &'a str, from: &str, to: &str) -> Option<&'a str> {
    after(text, from)?.split_once(to).map(|(inner, _)| inner)
}

#[cfg(test)]
#[path = "kernel_log_test.rs"]
mod tests;
