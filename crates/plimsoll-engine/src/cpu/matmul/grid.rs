//! Which task computes which tiles.
//!
//! The cut changes no bit of the result: tiles are the same ones whoever computes them.

use plimsoll_plan::tiles::Tiles;

/// How the tiles of one block are dealt out.
pub(super) struct Grid {
    m: usize,
    rows_per_task: usize,
    panels: usize,
    panels_per_task: usize,
    panel_tasks: usize,
    row_tasks: usize,
}

impl Grid {
    /// The cut with the earliest end: all threads get as much, and a task reads few panels for many rows or the reverse.
    pub fn of(m: usize, panels: usize, tiles: &Tiles, threads: usize, packs_rows: bool) -> Grid {
        let strips = m.div_ceil(tiles.nr);
        let together = tiles.mc / tiles.mr;
        let most = threads * 4;
        let cuts = (1..=most.min(strips)).flat_map(|r| (1..=(most / r).min(panels)).map(move |c| (r, c)));
        let (_, strips_per_task, panels_per_task) = cuts
            .map(|(r, c)| {
                let (s, p) = (strips.div_ceil(r), panels.div_ceil(c));
                let tasks = strips.div_ceil(s) * panels.div_ceil(p);
                let once = task_cost(s, p, together, packs_rows);
                // Two tasks a thread at least, so that a core that others use as well is waited for less.
                let waiting = if tasks < threads * 2 { once / 16 } else { 0 };
                (tasks.div_ceil(threads) * once + waiting, s, p)
            })
            .min()
            .expect("there is a tile");
        let rows_per_task = strips_per_task * tiles.nr;
        let (row_tasks, panel_tasks) = (m.div_ceil(rows_per_task), panels.div_ceil(panels_per_task));
        Grid { m, rows_per_task, panels, panels_per_task, panel_tasks, row_tasks }
    }

    pub fn tasks(&self) -> usize {
        self.row_tasks * self.panel_tasks
    }

    pub fn get(&self, task: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let (row, panel) = (task / self.panel_tasks, task % self.panel_tasks);
        let rows = row * self.rows_per_task..((row + 1) * self.rows_per_task).min(self.m);
        (rows, panel * self.panels_per_task..((panel + 1) * self.panels_per_task).min(self.panels))
    }
}

/// Time of one task per depth, roughly in cycles of a core with AVX-512: 24 for a full tile; half of what it takes to fetch
/// each panel once and each strip once per group of panels, since the other half is hidden; packing of strips.
fn task_cost(strips: usize, panels: usize, together: usize, packs_rows: bool) -> usize {
    24 * strips * panels + 8 * panels + strips * panels.div_ceil(together) + if packs_rows { 6 * strips } else { 0 }
}

#[cfg(test)]
mod tests {
    use plimsoll_plan::tiles::Simd;

    use super::*;

    #[test]
    fn every_tile_is_dealt_once_and_threads_get_as_much() {
        let tiles = Tiles::of(Simd::Avx512);
        for m in [1, 6, 17, 96, 256, 300, 1024, 4864] {
            for panels in [1, 2, 12, 14, 18, 32] {
                for threads in [1, 2, 3, 4, 16] {
                    let grid = Grid::of(m, panels, &tiles, threads, false);
                    let strips = m.div_ceil(tiles.nr);
                    let mut seen = vec![0; strips * panels];
                    let mut largest = 0;
                    for task in 0..grid.tasks() {
                        let (rows, range) = grid.get(task);
                        assert!(rows.start.is_multiple_of(tiles.nr) && !rows.is_empty() && !range.is_empty());
                        largest = largest.max(rows.len().div_ceil(tiles.nr) * range.len());
                        for strip in rows.step_by(tiles.nr) {
                            range.clone().for_each(|panel| seen[strip / tiles.nr * panels + panel] += 1);
                        }
                    }
                    assert!(seen.iter().all(|n| *n == 1), "{m} rows, {panels} panels, {threads} threads");
                    let longest = grid.tasks().div_ceil(threads) * largest;
                    let fair = (strips * panels).div_ceil(threads);
                    if fair >= 64 {
                        assert!(
                            longest * 8 <= fair * 9,
                            "{m} rows, {panels} panels, {threads} threads: {longest}, {fair}"
                        );
                    }
                }
            }
        }
    }
}
