//! The slope of the headroom, and when it reaches nothing.

use std::time::Duration;

use super::{Sample, TREMBLE};

/// How many of the last samples make the slope: at one a second, the 10 s window of PSI and systemd-oomd.
pub const TREND_SAMPLES: usize = 10;
/// Fewer make no slope.
const FEWEST: usize = 4;
/// A slope counts when the fall that it claims over the window is this many times its own error.
const SIGNIFICANT: f64 = 3.0;

/// When the headroom will be gone if it goes on falling as over the last [`TREND_SAMPLES`] samples, by least squares;
/// `None` if it does not fall, or only trembles.
pub fn time_to_limit(samples: &[Sample]) -> Option<Duration> {
    let window = &samples[samples.len().saturating_sub(TREND_SAMPLES)..];
    if window.len() < FEWEST {
        return None;
    }
    let count = window.len() as f64;
    let start = window[0].at;
    let points: Vec<(f64, f64)> =
        window.iter().map(|s| (s.at.saturating_sub(start).as_secs_f64(), s.headroom.0 as f64)).collect();
    let mean_t = points.iter().map(|p| p.0).sum::<f64>() / count;
    let mean_h = points.iter().map(|p| p.1).sum::<f64>() / count;
    let spread = points.iter().map(|p| (p.0 - mean_t).powi(2)).sum::<f64>();
    if spread <= 0.0 {
        return None;
    }
    let slope = points.iter().map(|p| (p.0 - mean_t) * (p.1 - mean_h)).sum::<f64>() / spread;
    let error = points.iter().map(|p| (p.1 - mean_h - slope * (p.0 - mean_t)).powi(2)).sum::<f64>() / (count - 2.0);
    let slope_error = (error / spread).sqrt();
    // A page a second is no slope.
    if slope > -4096.0 || -slope < SIGNIFICANT * slope_error {
        return None;
    }
    let fall = -slope * (points.last()?.0 - points[0].0);
    if fall < TREMBLE.0 as f64 {
        return None;
    }
    let seconds = points.last()?.1 / -slope;
    Duration::try_from_secs_f64(seconds).ok()
}
