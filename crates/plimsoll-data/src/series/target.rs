//! What is to be foretold of a sample: its class and its values, from the cells of two rows.
//!
//! Invariant: pure. What cannot be said (a cell is missing, a return on nothing) is not known: [`IGNORE`], or NaN; never a number that
//! somebody made up.

use plimsoll_plan::batch::IGNORE;

use super::scale::Scale;
use super::spec::{ClassTarget, Of, SeriesSpec};

/// How cells become targets.
#[derive(Debug)]
pub(crate) struct Targets {
    class: Option<(usize, ClassTarget)>,
    values: Box<[(usize, Of)]>,
    /// By which values are normalised; none where they are not.
    pub scales: Box<[Scale]>,
}

impl Targets {
    /// Values as they are.
    pub fn of(spec: &SeriesSpec) -> Targets {
        let cells = spec.cells();
        let place = |name: &str| cells.iter().position(|cell| *cell == name).unwrap_or(0);
        Targets {
            class: spec.class.as_ref().map(|class| (place(class.column()), class.clone())),
            values: spec.values.iter().map(|value| (place(&value.column), value.of)).collect(),
            scales: Box::default(),
        }
    }

    pub fn values(&self) -> usize {
        self.values.len()
    }

    /// The class, by the cells of the last row of the window and of the row that is foretold.
    pub fn class(&self, now: &[f64], then: &[f64]) -> u32 {
        let Some((cell, class)) = &self.class else { return IGNORE };
        let of = |of: Of| Some(future(of, now[*cell], then[*cell])).filter(|x| !x.is_nan());
        match class {
            ClassTarget::Direction { of: what, flat, .. } => of(*what).map(|x| match x {
                x if x < -flat => 0,
                x if x > *flat => 2,
                _ => 1,
            }),
            ClassTarget::Thresholds { of: what, at, .. } => {
                of(*what).map(|x| at.partition_point(|threshold| *threshold <= x) as u32)
            }
            ClassTarget::Column { .. } => of(Of::Value).map(|x| x as u32),
        }
        .unwrap_or(IGNORE)
    }

    /// Value `which`, as it is.
    pub fn value(&self, which: usize, now: &[f64], then: &[f64]) -> f64 {
        let (cell, of) = self.values[which];
        future(of, now[cell], then[cell])
    }

    /// Value `which`, as it is handed out.
    pub fn scaled(&self, which: usize, now: &[f64], then: &[f64]) -> f32 {
        let value = self.value(which, now, then);
        let value = self.scales.get(which).map_or(value, |scale| scale.apply(value)) as f32;
        if value.is_finite() { value } else { f32::NAN }
    }
}

/// What of a column is meant; NaN where that cannot be said.
fn future(of: Of, now: f64, then: f64) -> f64 {
    let what = match of {
        Of::Value => then,
        Of::Change => then - now,
        Of::Return => (then - now) / now,
    };
    if what.is_finite() { what } else { f64::NAN }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(class: ClassTarget) -> Targets {
        Targets { class: Some((0, class)), values: Box::new([(0, Of::Return)]), scales: Box::default() }
    }

    #[test]
    fn a_direction_is_down_flat_or_up() {
        let rule = targets(ClassTarget::Direction { column: "a".into(), of: Of::Return, flat: 0.25 });
        let class = |now: f64, then: f64| rule.class(&[now], &[then]);
        assert_eq!([class(4.0, 2.9), class(4.0, 3.0), class(4.0, 5.0), class(4.0, 5.1)], [0, 1, 1, 2]);
        assert_eq!([class(0.0, 1.0), class(f64::NAN, 1.0), class(1.0, f64::NAN)], [IGNORE; 3]);
        // A negative base turns the sign of the return.
        assert_eq!(class(-4.0, -2.0), 0);
    }

    #[test]
    fn thresholds_count_what_is_reached() {
        let rule = targets(ClassTarget::Thresholds { column: "a".into(), of: Of::Change, at: vec![-1.0, 0.0, 2.0] });
        let class = |then: f64| rule.class(&[10.0], &[then]);
        assert_eq!([class(8.0), class(9.0), class(9.5), class(10.0), class(12.0), class(99.0)], [0, 1, 1, 2, 3, 3]);
    }

    #[test]
    fn values_are_foretold_as_asked_and_normalised_behind_that() {
        let mut rule = targets(ClassTarget::Column { column: "a".into(), classes: 9 });
        assert_eq!(rule.class(&[1.0], &[7.0]), 7);
        assert_eq!(rule.scaled(0, &[4.0], &[5.0]), 0.25);
        rule.scales = Box::new([Scale { mean: 0.5, std: 0.125 }]);
        assert_eq!(rule.scaled(0, &[4.0], &[5.0]), -2.0);
        assert!(rule.scaled(0, &[0.0], &[5.0]).is_nan() && rule.scaled(0, &[1e-300], &[1e300]).is_nan());
    }
}
