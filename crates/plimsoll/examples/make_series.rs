//! Makes `examples/series`: what three machines' sensors say, minute by minute.
//!
//! A load that swings, now faster and now slower, a temperature that follows it, a vibration that is strongest where the
//! load moves fastest, and noise on all of them. Invariant: the same bytes on every machine (own generator, sums and
//! products only, no clock). It refuses to know how the model is trained.
//!
//! Run with `cargo run -p plimsoll --example make_series`; a test compares the committed file with this.

use std::fmt::Write;

const ROWS: usize = 2000;
const MACHINES: [(&str, f64); 3] = [("press", 0.31), ("mill", 0.24), ("lathe", 0.27)];

/// SplitMix64 (Steele et al. 2014).
struct Draws(u64);

impl Draws {
    /// From 0 to less than 1.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// About normal, of this spread: four uniform draws.
    fn noise(&mut self, spread: f64) -> f64 {
        let sum: f64 = (0..4).map(|_| self.uniform() - 0.5).sum();
        // Each has a variance of a twelfth.
        sum * 1.732_050_8 * spread
    }
}

/// The rows of one machine: load, temperature, vibration.
fn machine(seed: u64, usual: f64) -> Vec<[f64; 3]> {
    let mut draws = Draws(seed);
    let (mut x, mut y, mut pace, mut heat) = (1.0, 0.0, usual, 0.0);
    let mut rows = Vec::with_capacity(ROWS);
    for _ in 0..ROWS {
        // A swing by two products, which neither grows nor dies.
        x -= pace * y;
        y += pace * x;
        pace = (pace + draws.noise(0.004)).clamp(0.7 * usual, 1.4 * usual);
        heat += 0.15 * (x - heat);
        let load = 60.0 + 20.0 * x + draws.noise(1.5);
        let temperature = 45.0 + 8.0 * heat + draws.noise(0.4);
        let vibration = 2.0 + 1.2 * y * y + draws.noise(0.2);
        rows.push([load, temperature, vibration]);
    }
    rows
}

/// Every file of the example that is made, with its text.
pub fn files() -> Vec<(&'static str, String)> {
    let machines: Vec<_> =
        MACHINES.iter().enumerate().map(|(n, (name, pace))| (*name, machine(n as u64 + 1, *pace))).collect();
    let mut text = String::from("minute,machine,load,temperature,vibration\n");
    for minute in 0..ROWS {
        for (name, rows) in &machines {
            let [load, temperature, vibration] = rows[minute];
            writeln!(text, "{minute},{name},{load:.2},{temperature:.2},{vibration:.3}").expect("a text takes all");
        }
    }
    vec![("data/machines.csv", text)]
}

fn main() -> std::io::Result<()> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/series");
    for (path, text) in files() {
        let path = folder.join(path);
        fs_err::create_dir_all(path.parent().expect("a file is in a folder"))?;
        fs_err::write(path, text)?;
    }
    Ok(())
}
