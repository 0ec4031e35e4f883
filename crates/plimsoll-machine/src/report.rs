//! The probe in words: the answer first, then what it was made of.
//!
//! One fact a line, bytes in GiB or MiB, and no number that the probe itself does not hold.

use std::fmt;

use crate::{
    Bound, Cgroup, CgroupVersion, DiskKind, Gpu, HugePages, Overcommit, Pressure, Probe, Room, Sighting, SimdLevel,
};

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "usable now   {}, set by ", self.usable)?;
        match &self.bound {
            Bound::Ram => writeln!(f, "the RAM that is available")?,
            Bound::Cgroup { room } => writeln!(f, "cgroup: {}", RoomWords(room))?,
            Bound::Commit => writeln!(f, "strict overcommit: the kernel promises no more")?,
        }
        writeln!(f, "RAM          {} available of {}", self.ram.available, self.ram.total)?;
        if self.swap.total.0 == 0 {
            writeln!(f, "swap         none")?;
        } else {
            writeln!(f, "swap         {} usable, {} free of {}", self.swap.usable, self.swap.free, self.swap.total)?;
        }
        match &self.cgroup {
            Sighting::Seen(cgroup) => write_cgroup(f, cgroup)?,
            Sighting::Unseen { reason } => writeln!(f, "cgroup       none: {reason}")?,
        }
        write_pressure(f, "pressure", &self.pressure)?;
        self.write_cpu(f)?;
        let disk = &self.disk;
        let kind = match disk.kind {
            DiskKind::Local => "",
            DiskKind::Memory => " in RAM",
            DiskKind::Network => " over the network",
        };
        let fs = disk.fs.as_deref().unwrap_or("file system unknown");
        let path = disk.path.display();
        writeln!(f, "disk         {} free of {} at {path} ({fs}{kind})", disk.space.available, disk.space.total)?;
        match &self.shm {
            Sighting::Seen(shm) => writeln!(f, "/dev/shm     {} free of {}", shm.available, shm.total)?,
            Sighting::Unseen { reason } => writeln!(f, "/dev/shm     none: {reason}")?,
        }
        self.write_gpus(f)?;
        self.write_limits(f)
    }
}

impl Probe {
    fn write_cpu(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let simd = match self.cpu.simd {
            SimdLevel::Avx512 => "AVX-512",
            SimdLevel::Avx2 => "AVX2 and FMA",
            SimdLevel::Baseline => "neither AVX2 with FMA nor AVX-512",
        };
        let cores = &self.cpu.cores;
        writeln!(f, "CPU          {}, {simd}", self.cpu.model)?;
        write!(f, "cores        {} usable: {} allowed of {}", cores.usable, cores.allowed, cores.online)?;
        if let Some(physical) = cores.physical.filter(|physical| *physical != cores.allowed) {
            write!(f, ", on {physical} physical")?;
        }
        if let Some(quota) = cores.quota {
            write!(f, ", quota {quota:.2}")?;
        }
        writeln!(f)
    }

    fn write_gpus(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpus = match &self.gpus {
            Sighting::Seen(gpus) => gpus,
            Sighting::Unseen { reason } => return writeln!(f, "GPU          none: {reason}"),
        };
        let cuda = gpus.cuda.as_deref().map_or(String::new(), |cuda| format!(", CUDA {cuda}"));
        if gpus.cards.is_empty() {
            writeln!(f, "GPU          none: NVML is there and counts no card (driver {}{cuda})", gpus.driver)?;
        }
        for card in &gpus.cards {
            match card {
                Sighting::Seen(card) => write_card(f, card, &gpus.driver, &cuda)?,
                Sighting::Unseen { reason } => writeln!(f, "GPU          unknown: {reason}")?,
            }
        }
        Ok(())
    }

    fn write_limits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limits.memlock {
            Some(bytes) => writeln!(f, "memlock      {bytes}")?,
            None => writeln!(f, "memlock      no limit")?,
        }
        if let Some(bytes) = self.limits.address_space {
            writeln!(f, "addresses    {bytes} at most")?;
        }
        let kernel = &self.kernel;
        let overcommit = match kernel.overcommit {
            Some(Overcommit::Heuristic) => "heuristic",
            Some(Overcommit::Always) => "always",
            Some(Overcommit::Strict) => "strict",
            None => "unknown",
        };
        let huge = match kernel.huge_pages {
            Some(HugePages::Always) => "always",
            Some(HugePages::Madvise) => "on request",
            Some(HugePages::Never) => "never",
            None => "not there",
        };
        let wsl = if kernel.wsl { " (WSL)" } else { "" };
        let page = kernel.page.0;
        write!(f, "kernel       {}{wsl}, overcommit {overcommit}, huge pages {huge}, page size {page}", kernel.release)
    }
}

/// `4.00 GiB (file) - 3.50 GiB used + 1.00 GiB reclaimable`
struct RoomWords<'r>(&'r Room);

impl fmt::Display for RoomWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Room { limit, current, reclaimable, .. } = self.0;
        write!(f, "{} ({}) - {current} used + {reclaimable} reclaimable", limit.bytes, limit.file.display())
    }
}

fn write_cgroup(f: &mut fmt::Formatter<'_>, cgroup: &Cgroup) -> fmt::Result {
    let version = match cgroup.version {
        CgroupVersion::V1 => "v1",
        CgroupVersion::V2 => "v2",
    };
    write!(f, "cgroup       {version} {}: ", cgroup.path)?;
    match &cgroup.limit {
        Some(limit) => writeln!(f, "limit {} ({})", limit.bytes, limit.file.display())?,
        None => writeln!(f, "no limit")?,
    }
    writeln!(f, "  own use    {}, of it {} reclaimable", cgroup.current, cgroup.reclaimable)?;
    if let Some(room) = &cgroup.room {
        writeln!(f, "  room       {} = {}", room.bytes, RoomWords(room))?;
    }
    if let Some(limit) = cgroup.swap_limit {
        writeln!(f, "  swap       {limit} allowed")?;
    }
    if let Sighting::Seen(_) = &cgroup.pressure {
        write_pressure(f, "  pressure", &cgroup.pressure)?;
    }
    Ok(())
}

fn write_pressure(f: &mut fmt::Formatter<'_>, label: &str, pressure: &Sighting<Pressure>) -> fmt::Result {
    match pressure {
        Sighting::Seen(Pressure { some, full }) => writeln!(
            f,
            "{label:<12} some {:.2} % / {:.2} %, full {:.2} % / {:.2} % of the last 10 s / 60 s",
            some.avg10, some.avg60, full.avg10, full.avg60
        ),
        Sighting::Unseen { reason } => writeln!(f, "{label:<12} unknown: {reason}"),
    }
}

fn write_card(f: &mut fmt::Formatter<'_>, card: &Gpu, driver: &str, cuda: &str) -> fmt::Result {
    match &card.memory {
        Sighting::Seen(memory) => {
            write!(f, "GPU          {}: {} free of {}", card.name, memory.free, memory.total)?;
        }
        Sighting::Unseen { reason } => write!(f, "GPU          {}: memory unknown, {reason}", card.name)?,
    }
    if let Some((major, minor)) = card.compute {
        write!(f, ", compute {major}.{minor}")?;
    }
    writeln!(f, " (driver {driver}{cuda}, {})", card.pci)
}
