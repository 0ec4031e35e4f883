//! Which task computes which tiles.

use plimsoll_plan::tiles::Tiles;

/// How the tiles of one block are dealt out: by rows first, by panels where rows are few.
pub(super) struct Grid {
    m: usize,
    rows_per_task: usize,
    row_tasks: usize,
    panels: usize,
    panels_per_task: usize,
    panel_tasks: usize,
}

impl Grid {
    pub fn of(m: usize, panels: usize, tiles: &Tiles, threads: usize) -> Grid {
        let strips = m.div_ceil(tiles.nr);
        let row_tasks = (strips / 8).clamp(1, threads * 4);
        let rows_per_task = strips.div_ceil(row_tasks) * tiles.nr;
        let row_tasks = m.div_ceil(rows_per_task);
        let panel_tasks = (threads * 2).div_ceil(row_tasks).min(panels).max(1);
        let panels_per_task = panels.div_ceil(panel_tasks);
        Grid { m, rows_per_task, row_tasks, panels, panels_per_task, panel_tasks: panels.div_ceil(panels_per_task) }
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
