//! The view as figures for Prometheus, in the OpenMetrics text format.
//!
//! What nobody has measured is left out, not written as zero. Counters count over the whole journal, so a page that is
//! started again goes on where it was.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::Arc;

use plimsoll_machine::Bytes;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::feed::Told;
use crate::view::{PartView, ProcessView, Status};

/// The format's media type.
pub(super) const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All figures of a view.
pub(super) fn text(told: &Arc<Told>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Figures(Arc::clone(told))));
    let mut text = String::new();
    // A String takes whatever is written to it.
    let _ = encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Figures(Arc<Told>);

impl Collector for Figures {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut sheet = Sheet(encoder);
        self.run(&mut sheet)?;
        self.training(&mut sheet)?;
        self.memory(&mut sheet)?;
        self.processes(&mut sheet)?;
        self.counts(&mut sheet)
    }
}

impl Figures {
    fn run(&self, sheet: &mut Sheet<'_>) -> Result<(), Error> {
        let Told { name, view, .. } = &*self.0;
        let version = view.run.as_ref().map_or("", |run| &run.version);
        let mut labels: Vec<(&str, &str)> = vec![("name", name), ("version", version)];
        labels.extend(view.trainer.as_ref().map(|trainer| ("trainer", trainer.name.as_str())));
        sheet.info("plimsoll_run", "What is watched", &labels)?;
        let states = [
            ("running", Status::Running),
            ("stopped", Status::Stopped),
            ("finished", Status::Finished),
            ("dead", Status::Dead),
        ];
        let states = states.map(|(name, state)| (name, if view.status == state { 1.0 } else { 0.0 }));
        sheet.gauges("plimsoll_status", "How the run stands: 1 for what holds", "status", states)?;
        let last = view.last_unix_ms.map(|ms| ms as f64 / 1e3);
        sheet.gauge("plimsoll_last_record_timestamp_seconds", "When the journal's last line was written", last)
    }

    fn training(&self, sheet: &mut Sheet<'_>) -> Result<(), Error> {
        let view = &self.0.view;
        let latest = view.latest.as_ref();
        sheet.gauge("plimsoll_step", "Steps that are done and count", Some(view.step as f64))?;
        let total = (view.total_steps > 0).then_some(view.total_steps as f64);
        sheet.gauge("plimsoll_planned_steps", "Steps to do", total)?;
        sheet.gauge("plimsoll_loss", "Mean loss of the last step", latest.map(|step| step.loss))?;
        // Of somebody else's trainer the log tells step and loss, and nothing else.
        let own = latest.filter(|_| view.trainer.is_none());
        sheet.gauge("plimsoll_learning_rate", "Learning rate of the last step", own.map(|step| step.lr))?;
        let norm = latest.and_then(|step| step.grad_norm);
        sheet.gauge("plimsoll_gradient_norm", "Norm of the last step's gradient before clipping", norm)?;
        sheet.gauge("plimsoll_step_seconds", "Wall time of the last step", own.map(|step| step.seconds))?;
        let pace = view.seconds_per_step.filter(|_| view.trainer.is_some());
        sheet.gauge("plimsoll_seconds_per_step", "Wall time of a step since the trainer was started", pace)?;
        let evaluated = view.evaluated.as_ref();
        sheet.gauge("plimsoll_eval_loss", "Mean loss of the last evaluation", evaluated.map(|eval| eval.loss))?;
        sheet.gauge("plimsoll_eval_bleu", "BLEU-4 of the last evaluation", evaluated.and_then(|eval| eval.bleu))?;
        let exact = evaluated.and_then(|eval| eval.exact);
        sheet.gauge("plimsoll_eval_exact_ratio", "Share of exactly right answers of the last evaluation", exact)?;
        let accuracy = evaluated.and_then(|eval| eval.accuracy);
        sheet.gauge("plimsoll_eval_accuracy_ratio", "Share of right classes of the last evaluation", accuracy)?;
        let macro_f1 = evaluated.and_then(|eval| eval.macro_f1);
        sheet.gauge("plimsoll_eval_macro_f1", "Mean F1 of the classes of the last evaluation", macro_f1)?;
        let rate = view.tokens_per_second;
        sheet.gauge("plimsoll_tokens_per_second", "Tokens per second over the latest steps", rate)?;
        sheet.gauge("plimsoll_eta_seconds", "Time left at the present pace", view.eta_seconds)?;
        let time = &view.time;
        let spent = [
            ("compute", time.compute),
            ("data", time.data),
            ("save", time.save),
            ("eval", time.eval),
            ("other", time.other),
        ];
        sheet.counters("plimsoll_time_seconds", "Wall time by what it was spent on", "spent", spent)
    }

    fn memory(&self, sheet: &mut Sheet<'_>) -> Result<(), Error> {
        let memory = &self.0.view.memory;
        let parts = |bytes: fn(&PartView) -> Option<Bytes>| {
            memory.parts.iter().filter_map(move |part| Some((part.name.as_str(), bytes(part)?.0 as f64)))
        };
        let used = parts(|part| part.used_bytes);
        sheet.gauges("plimsoll_ram_bytes", "RAM in use, by line of the plan, where it is measured", "part", used)?;
        let planned = parts(|part| part.planned_bytes);
        sheet.gauges("plimsoll_ram_planned_bytes", "RAM planned, by line of the plan", "part", planned)?;
        let foreign = self.0.view.trainer.is_some();
        let (budget, limit) = if foreign { (None, memory.budget_bytes) } else { (memory.budget_bytes, None) };
        let totals = [
            ("plimsoll_ram_used_bytes", "RAM in use, all processes", memory.used_bytes),
            ("plimsoll_ram_peak_bytes", "The most RAM that was seen in use", memory.seen_peak_bytes),
            ("plimsoll_ram_planned_peak_bytes", "The planned peak of RAM", memory.planned_bytes),
            ("plimsoll_ram_budget_bytes", "The budget that the plan was made for", budget),
            ("plimsoll_ram_limit_bytes", "The limit of the trainer's cgroup", limit),
            ("plimsoll_headroom_bytes", "What could still be taken, under all limits", memory.headroom_bytes),
            ("plimsoll_swap_bytes", "The worker's swap", memory.swap_bytes),
            ("plimsoll_vram_used_bytes", "The card's memory in use, all included", memory.vram_bytes),
            ("plimsoll_swapping_bytes_per_second", "The machine's swapping", memory.swapping_bytes_per_second),
            ("plimsoll_disk_free_bytes", "Free on the run folder's file system", memory.disk_free_bytes),
        ];
        for (name, help, bytes) in totals {
            sheet.gauge(name, help, bytes.map(|bytes| bytes.0 as f64))?;
        }
        let stalls = [("some", memory.stall_some), ("full", memory.stall_full)];
        let stalls = stalls.into_iter().filter_map(|(kind, percent)| Some((kind, percent? / 100.0)));
        sheet.gauges("plimsoll_memory_stall_ratio", "Share of time stalled on memory (PSI, 10 s)", "kind", stalls)
    }

    /// The processes of somebody else's trainer, added up by role: numbers of processes come and go.
    fn processes(&self, sheet: &mut Sheet<'_>) -> Result<(), Error> {
        let Some(trainer) = &self.0.view.trainer else { return Ok(()) };
        let by_role = |of: fn(&ProcessView) -> Option<f64>| {
            let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
            for process in &trainer.processes {
                if let Some(value) = of(process) {
                    *sums.entry(process.role.as_str()).or_default() += value;
                }
            }
            sums
        };
        sheet.gauges("plimsoll_processes", "Processes of the trainer, by role", "role", by_role(|_| Some(1.0)))?;
        let rss = by_role(|process| Some(process.rss_bytes.0 as f64));
        sheet.gauges("plimsoll_process_rss_bytes", "RAM by role, shared pages counted in full", "role", rss)?;
        let pss = by_role(|process| Some(process.pss_bytes?.0 as f64));
        sheet.gauges("plimsoll_process_pss_bytes", "Fair share of RAM by role", "role", pss)?;
        let vram = by_role(|process| Some(process.vram_bytes?.0 as f64));
        sheet.gauges("plimsoll_process_vram_bytes", "Memory on the cards by role", "role", vram)
    }

    fn counts(&self, sheet: &mut Sheet<'_>) -> Result<(), Error> {
        let view = &self.0.view;
        let kinds = view.incident_kinds.iter().map(|(kind, &count)| (kind.as_str(), count as f64));
        sheet.counters("plimsoll_incidents", "Deaths and failures of a worker, by kind of cause", "kind", kinds)?;
        let counts = &view.counts;
        let rows = [
            ("plimsoll_restarts", "Workers that the supervisor started again by itself", counts.restarts),
            ("plimsoll_saves", "Checkpoints that were written", counts.saved),
            ("plimsoll_saves_not_done", "Saves that were not done", counts.not_saved),
            ("plimsoll_evaluations", "Evaluations", counts.evaluations),
            ("plimsoll_skipped_updates", "Updates skipped for numbers that were not finite", counts.skipped),
            ("plimsoll_mirrored", "Checkpoints and models that are whole at the mirror", counts.mirrored),
            ("plimsoll_mirror_troubles", "Times that the mirror could not be reached", counts.mirror_troubles),
            ("plimsoll_warnings", "Warnings", counts.warnings),
            ("plimsoll_unreadable_lines", "Lines of the journal that are no record", counts.unreadable),
        ];
        for (name, help, count) in rows {
            let encoder = sheet.0.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(count).encode(encoder)?;
        }
        Ok(())
    }
}

/// The figures as they are written down. Counters get their `_total` from the format.
struct Sheet<'a>(DescriptorEncoder<'a>);

impl Sheet<'_> {
    fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) -> Result<(), Error> {
        self.0.encode_descriptor(name, help, None, MetricType::Info)?.encode_info(&labels)
    }

    fn gauge(&mut self, name: &str, help: &str, value: Option<f64>) -> Result<(), Error> {
        let Some(value) = value else { return Ok(()) };
        ConstGauge::new(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    fn gauges<'v>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'v str, f64)>,
    ) -> Result<(), Error> {
        let mut values = values.into_iter().peekable();
        if values.peek().is_none() {
            return Ok(());
        }
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        values.try_for_each(|value| ConstGauge::new(value.1).encode(family.encode_family(&[(label, value.0)])?))
    }

    fn counters<'v>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'v str, f64)>,
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        let mut values = values.into_iter();
        values.try_for_each(|value| ConstCounter::new(value.1).encode(family.encode_family(&[(label, value.0)])?))
    }
}
