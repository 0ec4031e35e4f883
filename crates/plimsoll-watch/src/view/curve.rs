//! A curve of bounded size: neighbouring points share a bucket, and of a bucket its first, lowest, highest and last
//! point are kept, so that no spike is thinned away.
//!
//! Points come in ascending order.

/// A point.
pub type Point = (f64, f64);

/// Buckets, of up to four points each.
const BUCKETS: usize = 150;

/// A thinned curve of at most 600 points.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// How much of x a bucket covers; each point has its own while this is 0.
    width: f64,
    buckets: Vec<Bucket>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Bucket {
    first: Point,
    lowest: Point,
    highest: Point,
    last: Point,
}

impl Curve {
    /// Adds the point of `x` in the place of whatever stands at `x` or after it.
    pub fn put(&mut self, x: f64, y: f64) {
        self.cut(|kept| kept < x);
        self.push(x, y);
    }

    /// Adds a point. One that lies before the last, or is not finite and cannot be drawn, is left out.
    pub fn push(&mut self, x: f64, y: f64) {
        if !x.is_finite() || !y.is_finite() || self.last().is_some_and(|last| last.0 > x) {
            return;
        }
        let point = (x, y);
        match self.buckets.last_mut() {
            Some(bucket) if slot(bucket.first.0, self.width) == slot(x, self.width) => bucket.add(point),
            _ => self.buckets.push(Bucket { first: point, lowest: point, highest: point, last: point }),
        }
        while self.buckets.len() > BUCKETS {
            self.widen();
        }
    }

    /// Undoes the points whose x does not pass `keep`, which must hold up to some x and not after.
    pub fn cut(&mut self, keep: impl Fn(f64) -> bool) {
        while let Some(bucket) = self.buckets.last_mut() {
            if keep(bucket.last.0) {
                return;
            }
            if !keep(bucket.first.0) {
                self.buckets.pop();
                continue;
            }
            // Of the points between, those that were kept and still count.
            let still = [bucket.first, bucket.lowest, bucket.highest].into_iter().filter(|point| keep(point.0));
            let mut rest = Bucket { lowest: bucket.first, highest: bucket.first, last: bucket.first, ..*bucket };
            let mut points: Vec<Point> = still.collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points.into_iter().for_each(|point| rest.add(point));
            *bucket = rest;
            return;
        }
    }

    /// The last point.
    pub fn last(&self) -> Option<Point> {
        self.buckets.last().map(|bucket| bucket.last)
    }

    /// The points that are left, in order.
    pub fn points(&self) -> Vec<Point> {
        let mut points = Vec::with_capacity(4 * self.buckets.len());
        for bucket in &self.buckets {
            let mut four = [bucket.first, bucket.lowest, bucket.highest, bucket.last];
            four.sort_by(|a, b| a.0.total_cmp(&b.0));
            points.extend(four);
            points.dedup();
        }
        points
    }

    /// Makes buckets twice as wide, so that about half of them are left.
    fn widen(&mut self) {
        let (Some(first), Some(last)) = (self.buckets.first(), self.buckets.last()) else { return };
        let least = (last.last.0 - first.first.0) / BUCKETS as f64;
        self.width = if self.width == 0.0 { least.max(f64::MIN_POSITIVE) } else { 2.0 * self.width };
        let width = self.width;
        let mut merged: Vec<Bucket> = Vec::with_capacity(self.buckets.len());
        for bucket in self.buckets.drain(..) {
            match merged.last_mut() {
                Some(into) if slot(into.first.0, width) == slot(bucket.first.0, width) => into.merge(bucket),
                _ => merged.push(bucket),
            }
        }
        self.buckets = merged;
    }
}

/// Which bucket of this width x falls into; every x into its own while buckets have none.
fn slot(x: f64, width: f64) -> f64 {
    if width == 0.0 { x } else { (x / width).floor() }
}

impl Bucket {
    fn add(&mut self, point: Point) {
        if point.1 < self.lowest.1 {
            self.lowest = point;
        }
        if point.1 > self.highest.1 {
            self.highest = point;
        }
        self.last = point;
    }

    fn merge(&mut self, later: Bucket) {
        self.add(later.lowest);
        self.add(later.highest);
        self.last = later.last;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn curve(points: impl IntoIterator<Item = Point>) -> Curve {
        let mut curve = Curve::default();
        points.into_iter().for_each(|(x, y)| curve.put(x, y));
        curve
    }

    #[test]
    fn a_short_curve_is_kept_point_by_point() {
        let points: Vec<Point> = (1..=150).map(|n| (f64::from(n), f64::from(n * 7 % 13))).collect();
        assert_eq!(curve(points.clone()).points(), points);
    }

    #[test]
    fn a_million_points_become_six_hundred_and_single_spikes_stay() {
        let spikes = [(123_457.0, 9.0), (777_777.0, -3.0)];
        let y = |x: f64| spikes.iter().find(|spike| spike.0 == x).map_or(1.0 + (x % 10.0) / 100.0, |spike| spike.1);
        let curve = curve((1..=1_000_000).map(|n| (f64::from(n), y(f64::from(n)))));
        let points = curve.points();
        assert!(points.len() <= 600 && points.len() >= 200, "{}", points.len());
        assert!(spikes.iter().all(|spike| points.contains(spike)), "{points:?}");
        assert_eq!((points[0].0, points[points.len() - 1].0), (1.0, 1_000_000.0));
        assert!(points.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn numbers_that_are_not_finite_are_left_out_but_undo_what_they_go_back_behind() {
        let mut curve = curve([(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]);
        curve.put(2.0, f64::NAN);
        assert_eq!(curve.points(), [(1.0, 1.0)]);
    }

    #[test]
    fn two_points_of_one_moment_are_both_seen() {
        let mut curve = Curve::default();
        [(1.0, 5.0), (1.0, 9.0), (1.0, 4.0), (2.0, 5.0), (1.5, 7.0)].into_iter().for_each(|(x, y)| curve.push(x, y));
        let points = curve.points();
        assert!(
            [(1.0, 5.0), (1.0, 9.0), (1.0, 4.0), (2.0, 5.0)].iter().all(|point| points.contains(point)),
            "{points:?}"
        );
        assert!(!points.contains(&(1.5, 7.0)) && points.is_sorted_by(|a, b| a.0 <= b.0), "{points:?}");
    }

    proptest! {
        #[test]
        fn after_a_cut_no_later_point_is_left_and_every_point_was_given(
            ys in prop::collection::vec(-5.0..5.0f64, 1..2000), at in 0.0..2000.0f64, more in 0..500usize,
        ) {
            let given: Vec<Point> = ys.iter().enumerate().map(|(x, &y)| (x as f64, y)).collect();
            let mut curve = curve(given.clone());
            let highest = ys.iter().copied().fold(f64::MIN, f64::max);
            prop_assert!(curve.points().iter().any(|point| point.1 == highest));
            curve.cut(|x| x <= at);
            let points = curve.points();
            prop_assert!(points.iter().all(|point| point.0 <= at && given.contains(point)));
            prop_assert_eq!(points.first(), given.first());
            for n in 0..more {
                curve.put(at.floor() + 1.0 + n as f64, 100.0);
            }
            prop_assert!(curve.points().is_sorted_by(|a, b| a.0 < b.0));
            prop_assert!(curve.points().len() <= 600);
        }
    }
}
