//! Which panel goes where, for any size of terminal. Pure.
//!
//! From 60 columns and 16 rows on, everything is there: head, both charts side by side, parts beside time, events.
//! Where rows are fewer, parts and time go first, then the charts, then the events; the head stays. Below 60 columns
//! the panels stand below each other, and go in the order parts, time, memory, loss, events.

use ratatui::layout::Rect;

/// Below this width there is one column.
const TWO_COLUMNS: u16 = 60;
const HEAD: u16 = 3;
/// The least that says something: a title and some lines.
const CHART: u16 = 6;
const TABLES: u16 = 4;
const TIME: u16 = 6;
const EVENTS: u16 = 3;
/// The text form's charts.
const PAGE_CHART: u16 = 12;
const PAGE_EVENTS: u16 = 30;

/// Where each panel goes; those without a place are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Panels {
    pub head: Rect,
    pub loss: Option<Rect>,
    pub memory: Option<Rect>,
    pub parts: Option<Rect>,
    pub time: Option<Rect>,
    pub events: Option<Rect>,
}

impl Panels {
    /// All of it.
    pub fn area(&self) -> Rect {
        let others = [self.loss, self.memory, self.parts, self.time, self.events];
        others.into_iter().flatten().fold(self.head, Rect::union)
    }
}

/// The panels of a terminal of this size, for a plan of so many lines.
pub(super) fn arrange(area: Rect, part_lines: u16) -> Panels {
    let head = Rect { height: area.height.min(HEAD), ..area };
    let body = Rect { y: area.y + head.height, height: area.height - head.height, ..area };
    let panels = if area.width >= TWO_COLUMNS { bands(body, part_lines) } else { column(body, part_lines) };
    Panels { head, ..panels }
}

fn bands(body: Rect, part_lines: u16) -> Panels {
    let height = body.height;
    if height < CHART + EVENTS {
        let events = (height > 0).then_some(body);
        return Panels { events, ..Panels::default() };
    }
    let with_tables = height >= CHART + TABLES + EVENTS;
    let tables = match with_tables {
        true => (part_lines + 1).clamp(TABLES, (height * 3 / 10).max(TIME)).min(height - CHART - EVENTS),
        false => 0,
    };
    let events = (height / 4).clamp(EVENTS, height - tables - CHART);
    let charts = height - tables - events;
    let (loss, memory) = halves(Rect { height: charts, ..body });
    let (parts, time) = halves(Rect { y: body.y + charts, height: tables, ..body });
    Panels {
        loss: Some(loss),
        memory: Some(memory),
        parts: with_tables.then_some(parts),
        time: with_tables.then_some(time),
        events: Some(Rect { y: body.y + charts + tables, height: events, ..body }),
        ..Panels::default()
    }
}

fn column(body: Rect, part_lines: u16) -> Panels {
    // From what stays longest to what goes first.
    let least = [EVENTS, CHART, CHART, TIME, TABLES.max(part_lines.min(8) + 1)];
    let mut left = body.height;
    let mut heights = least.map(|least| {
        let fits = left >= least;
        left = if fits { left - least } else { 0 };
        if fits { least } else { 0 }
    });
    // What is over goes to the events, or to whatever stands alone.
    let used: u16 = heights.iter().sum();
    heights[0] += body.height - used;
    let [events, loss, memory, time, parts] = heights;
    let mut y = body.y;
    let mut place = |height: u16| {
        let placed = Rect { y, height, ..body };
        y += height;
        (height > 0).then_some(placed)
    };
    Panels {
        loss: place(loss),
        memory: place(memory),
        time: place(time),
        parts: place(parts),
        events: place(events),
        ..Panels::default()
    }
}

/// The panels of a page of text: as high as what is on it.
pub(super) fn page(width: u16, part_lines: u16, event_lines: u16) -> Panels {
    let row = |y, height| Rect { x: 0, y, width, height };
    let (loss, memory) = halves(row(HEAD, PAGE_CHART));
    let tables = (part_lines + 1).max(TIME);
    let (parts, time) = halves(row(HEAD + PAGE_CHART, tables));
    let events = row(HEAD + PAGE_CHART + tables, event_lines.clamp(1, PAGE_EVENTS) + 1);
    Panels {
        head: row(0, HEAD),
        loss: Some(loss),
        memory: Some(memory),
        parts: Some(parts),
        time: Some(time),
        events: Some(events),
    }
}

/// Two halves, with a column between them.
fn halves(row: Rect) -> (Rect, Rect) {
    let left = row.width / 2;
    let right = Rect { x: row.x + left, width: row.width - left, ..row };
    (Rect { width: left.saturating_sub(1), ..row }, right)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(width: u16, height: u16) -> Vec<&'static str> {
        let panels = arrange(Rect::new(0, 0, width, height), 14);
        let named = [
            ("loss", panels.loss),
            ("memory", panels.memory),
            ("time", panels.time),
            ("parts", panels.parts),
            ("events", panels.events),
        ];
        named.into_iter().filter_map(|(name, place)| place.map(|_| name)).collect()
    }

    #[test]
    fn everything_has_a_place_from_60_by_16_on_and_panels_go_in_the_stated_order() {
        let all = ["loss", "memory", "time", "parts", "events"];
        for (width, height) in [(60, 16), (60, 20), (80, 24), (200, 60), (500, 200)] {
            assert_eq!(shown(width, height), all, "{width}x{height}");
        }
        assert_eq!(shown(80, 15), ["loss", "memory", "events"]);
        assert_eq!(shown(80, 11), ["events"]);
        assert_eq!(shown(80, 3), [""; 0]);
        assert_eq!(shown(40, 40), all);
        assert_eq!(shown(40, 24), ["loss", "memory", "time", "events"]);
        assert_eq!(shown(40, 18), ["loss", "memory", "events"]);
        assert_eq!(shown(40, 12), ["loss", "events"]);
        assert_eq!(shown(40, 7), ["events"]);
    }

    #[test]
    fn panels_lie_inside_the_terminal_and_beside_each_other_at_every_size() {
        for width in 0..130 {
            for height in 0..70 {
                let area = Rect::new(0, 0, width, height);
                let panels = arrange(area, 14);
                let places = [panels.loss, panels.memory, panels.time, panels.parts, panels.events];
                let places: Vec<Rect> = [Some(panels.head)].into_iter().chain(places).flatten().collect();
                for (at, place) in places.iter().enumerate() {
                    assert_eq!(place.intersection(area), *place, "{width}x{height}: {panels:?}");
                    assert!(places[..at].iter().all(|other| !other.intersects(*place)), "{width}x{height}: {panels:?}");
                }
            }
        }
    }
}
