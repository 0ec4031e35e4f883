//! `plimsoll plan --sweep`: what each amount of RAM buys, as a table, as JSON, as a drawing.

use std::path::Path;

use plimsoll_machine::Bytes;
use plimsoll_plan::sweep::{SweepPoint, sweep};
use plimsoll_recover::atomic_write;
use plotters::prelude::*;

use crate::args::PlanArgs;
use crate::prepare::{Bound, Supervisor, prepare_and};
use crate::render::{self, Exit, Fail, OrFail};
use crate::settings::Settings;

/// Width and height of the drawing, in pixels.
const SIZE: (u32, u32) = (900, 540);

/// Sweeps and prints.
pub fn run(args: &PlanArgs) -> Result<(), Fail> {
    let settings = Settings::resolve(&args.job)?;
    if settings.card.is_some() {
        return Err(Fail::usage("`--sweep` is of RAM, for a run on the CPU; expected no `--device` with it")
            .hint("`plimsoll plan --device cuda --vram SIZE` plans one budget"));
    }
    let (prepared, _, points) = prepare_and(&settings, Supervisor::Later, Path::new("."), Bound::default(), sweep)?;
    prepared.remarks.iter().for_each(render::talk);
    if points.is_empty() {
        return Err(Fail::new(Exit::DoesNotFit, anyhow::anyhow!("the job runs under no budget at all")));
    }
    if let Some(path) = &args.svg {
        let drawing = draw(&points).or_failed()?;
        atomic_write(path, drawing.as_bytes())?;
        render::talk(format!("drawing: {}", path.display()));
    }
    if args.json { render::json(&points) } else { render::data(table(&points)) }
}

fn table(points: &[SweepPoint]) -> String {
    let mut out = format!("{:>10} {:>14} {:>10}   choices\n", "RAM", "s per update", "tokens/s");
    for point in points {
        let SweepPoint { budget, seconds_per_update, tokens_per_second, choices, .. } = point;
        let line =
            format!("{:>10} {seconds_per_update:>14.3} {tokens_per_second:>10.0}   {choices}\n", budget.to_string());
        out.push_str(&line);
    }
    out.push_str("seconds are the cost model's, with full lengths");
    out
}

/// The curve of budget and time.
fn draw(points: &[SweepPoint]) -> anyhow::Result<String> {
    let mib = |bytes: Bytes| bytes.0 as f64 / f64::from(1 << 20);
    let (least, most) = (mib(points[0].budget), mib(points[points.len() - 1].budget));
    let slowest = points.iter().map(|p| p.seconds_per_update).fold(0.0, f64::max);
    let room = ((most - least) * 0.05).max(1.0);
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(least - room..most + room, 0.0..slowest * 1.1)?;
        chart.configure_mesh().x_desc("RAM, MiB").y_desc("seconds per update").draw()?;
        // A budget between two points has the plan of the lower one.
        let steps = points.windows(2).flat_map(|pair| {
            let (from, to) = (mib(pair[0].budget), mib(pair[1].budget));
            [(from, pair[0].seconds_per_update), (to, pair[0].seconds_per_update)]
        });
        let last = points.last().map(|p| (mib(p.budget), p.seconds_per_update));
        chart.draw_series(LineSeries::new(steps.chain(last), BLUE.stroke_width(2)))?;
        let dots = points.iter().map(|p| Circle::new((mib(p.budget), p.seconds_per_update), 4, BLUE.filled()));
        chart.draw_series(dots)?;
        area.present()?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(mib: u64, seconds: f64) -> SweepPoint {
        SweepPoint {
            budget: Bytes::mib(mib),
            peak: Bytes::mib(mib),
            seconds_per_update: seconds,
            tokens_per_second: 1000.0 / seconds,
            choices: "recompute 2 of 6 blocks".into(),
        }
    }

    #[test]
    fn a_sweep_is_a_line_a_plan_and_a_drawing_with_a_dot_each() {
        let points = [point(100, 3.0), point(150, 2.0), point(400, 1.5)];
        let table = table(&points);
        assert_eq!(table.lines().count(), 5, "{table}");
        assert!(table.contains("150 MiB          2.000        500   recompute"), "{table}");
        let drawing = draw(&points).unwrap();
        assert!(drawing.starts_with("<svg") && drawing.matches("<circle").count() == 3, "{drawing}");
        assert!(draw(&points[..1]).unwrap().contains("RAM, MiB"));
    }
}
