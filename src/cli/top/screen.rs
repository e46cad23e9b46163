//! The picture that `tierfs top` draws, from the samples of the last minutes.

use std::cmp::Reverse;
use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, TableState};

use crate::cli::common::jobs::Job;
use crate::cli::common::output::{human, human_part};
use crate::cli::top::feed::{NextMove, Sample, Tensor, Times};
use crate::cli::top::text::{
    bar, beginning, counted, duration, ends_of, latency, number, shortened, spark, without_time,
};

/// Samples to keep: the longest sparkline.
const SAMPLES_MAX: usize = 121;
/// The number of samples that percentiles are computed from.
const WINDOW: usize = 10;
/// Lines about the daemon, with those of decoded copies.
const DAEMON_LINES: usize = 7;
const HELP: &str = " q quit   s, h sort   p moves of the policy   ↑↓ choose a job   c cancel it";

/// The order of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RequestOrder {
    Rate,
    Slowest,
    Name,
}

/// The order of tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TensorOrder {
    Score,
    Accesses,
    Bytes,
}

/// The request of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    Nothing,
    Leave,
    /// To cancel the job of this number.
    Cancel(u64),
    /// To read the next moves of the policy.
    Foresee,
}

/// A key, apart from the library that reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
    Letter(char),
    Up,
    Down,
    Escape,
}

/// The state of the view.
pub(super) struct Screen {
    mountpoint: String,
    store: String,
    samples: VecDeque<Sample>,
    requests: RequestOrder,
    tensors: TensorOrder,
    /// The next moves of the policy, which are shown in place of the hottest tensors.
    moves: Option<Vec<NextMove>>,
    /// The number of the chosen job.
    chosen: Option<u64>,
    /// The number of the job that `y` cancels.
    asked: Option<u64>,
    /// A message for the last line, until the next key.
    note: Option<String>,
}

impl Screen {
    /// A view of a mount.
    pub fn new(mountpoint: String, store: String) -> Screen {
        Screen {
            mountpoint,
            store,
            samples: VecDeque::new(),
            requests: RequestOrder::Rate,
            tensors: TensorOrder::Score,
            moves: None,
            chosen: None,
            asked: None,
            note: None,
        }
    }

    /// Adds the newest sample. After another mount of the store the counts begin anew.
    pub fn add(&mut self, sample: Sample) {
        if self.samples.back().is_some_and(|last| last.requests() > sample.requests()) {
            self.samples.clear();
        }
        self.samples.push_back(sample);
        if self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
        let listed = self.jobs();
        if !listed.iter().any(|job| Some(job.number) == self.chosen) {
            self.chosen = listed.first().map(|job| job.number);
        }
    }

    /// Shows a text in the last line.
    pub fn tell(&mut self, note: String) {
        self.note = Some(note);
    }

    /// Shows the next moves of the policy.
    pub fn foresee(&mut self, moves: Vec<NextMove>) {
        self.moves = Some(moves);
    }

    pub fn press(&mut self, key: Key) -> Wish {
        self.note = None;
        if let Some(number) = self.asked.take() {
            return if key == Key::Letter('y') { Wish::Cancel(number) } else { Wish::Nothing };
        }
        match key {
            Key::Letter('q') | Key::Escape => return Wish::Leave,
            Key::Letter('s') => {
                self.requests = match self.requests {
                    RequestOrder::Rate => RequestOrder::Slowest,
                    RequestOrder::Slowest => RequestOrder::Name,
                    RequestOrder::Name => RequestOrder::Rate,
                }
            }
            Key::Letter('h') => {
                self.tensors = match self.tensors {
                    TensorOrder::Score => TensorOrder::Accesses,
                    TensorOrder::Accesses => TensorOrder::Bytes,
                    TensorOrder::Bytes => TensorOrder::Score,
                }
            }
            Key::Letter('p') if self.moves.take().is_none() => return Wish::Foresee,
            Key::Letter('p') => {}
            Key::Up | Key::Letter('k') => self.choose(-1),
            Key::Down | Key::Letter('j') => self.choose(1),
            Key::Letter('c') => {
                let jobs = self.jobs();
                let chosen = jobs.iter().find(|job| Some(job.number) == self.chosen && !job.has_ended());
                self.asked = chosen.map(|job| job.number);
                if self.asked.is_none() {
                    self.note = Some("no job that waits or runs is chosen".to_owned());
                }
            }
            Key::Letter(_) => {}
        }
        Wish::Nothing
    }

    fn choose(&mut self, step: isize) {
        let jobs = self.jobs();
        let at = jobs.iter().position(|job| Some(job.number) == self.chosen).unwrap_or(0);
        let next = at.saturating_add_signed(step).min(jobs.len().saturating_sub(1));
        self.chosen = jobs.get(next).map(|job| job.number);
    }

    /// Jobs that run or wait, then those that have ended, the last one first.
    fn jobs(&self) -> Vec<&Job> {
        let jobs = self.samples.back().map_or(&[][..], |sample| &sample.jobs);
        let mut jobs: Vec<&Job> = jobs.iter().collect();
        jobs.sort_by_key(|job| match job.state.as_str() {
            "running" => (0, job.number),
            "waiting" => (1, job.number),
            _ => (2, u64::MAX - job.number),
        });
        jobs
    }

    pub fn draw(&self, frame: &mut Frame) {
        let area = frame.area();
        let last = self.samples.back();
        let tiers = last.map_or(0, |sample| sample.tiers.len());
        let lines = if area.height >= 36 { tiers.clamp(DAEMON_LINES, 8) } else { tiers.clamp(4, 5) };
        let middle = lines as u16 + 2;
        // A line for each kind of request with a count, at most half of the rest.
        let half = area.height.saturating_sub(middle + 2) / 2;
        let counts = last.map(|sample| sample.operations.values().filter(|times| times.count > 0).count());
        let requests = counts.map_or(half, |kinds| half.min(u16::try_from(kinds).unwrap_or(half) + 3));
        let rows = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(requests),
            Constraint::Length(middle),
            Constraint::Fill(1),
            Constraint::Length(1),
        ]);
        let [head, requests, middle, below, foot] = rows.areas(area);
        let [tiers, daemon] = Layout::horizontal([Constraint::Fill(1); 2]).areas(middle);
        let [tensors, jobs] = Layout::horizontal([Constraint::Fill(1); 2]).areas(below);
        self.draw_head(frame, head);
        self.draw_foot(frame, foot);
        let Some(sample) = last else { return };
        self.draw_requests(frame, requests);
        draw_tiers(frame, tiers, sample);
        self.draw_daemon(frame, daemon, sample);
        match &self.moves {
            Some(moves) => draw_moves(frame, tensors, moves),
            None => self.draw_tensors(frame, tensors, sample),
        }
        self.draw_jobs(frame, jobs);
    }

    fn draw_head(&self, frame: &mut Frame, area: Rect) {
        let mut line = vec![" tierfs top ".bold().reversed(), " ".into()];
        let sample = self.samples.back();
        match sample.map_or(0, |sample| sample.problems) {
            0 => {}
            1 => line.push(" 1 problem ".red().bold()),
            problems => line.push(format!(" {problems} problems ").red().bold()),
        }
        if let Some(sample) = sample {
            let [collections, files] = [("collections", "collection"), ("files", "file")]
                .map(|(name, noun)| counted(sample.count(name), noun));
            line.push(format!(" up {}, {collections}, {files} ", duration(sample.uptime)).into());
        }
        let used: usize = line.iter().map(|part| part.content.chars().count()).sum();
        let room = usize::from(area.width).saturating_sub(used + 1);
        let title = format!("{} ({})", self.mountpoint, self.store);
        let title = if title.chars().count() <= room { title } else { ends_of(&self.mountpoint, room) };
        line.push(format!(" {title}").dim());
        frame.render_widget(Line::from(line), area);
    }

    fn draw_foot(&self, frame: &mut Frame, area: Rect) {
        let line = match (self.asked, &self.note) {
            (Some(number), _) => format!(" cancel job {number}? y cancels it, any other key does not").bold(),
            (None, Some(note)) => format!(" {note}").yellow(),
            (None, None) => HELP.dim(),
        };
        frame.render_widget(Line::from(line), area);
    }

    /// The seconds of the last interval, and the sample at its beginning. With one sample only, the interval
    /// began with the mount.
    fn interval(&self) -> (f64, Option<&Sample>) {
        let last = self.samples.back();
        let before = self.samples.len().checked_sub(2).and_then(|place| self.samples.get(place));
        let seconds = match (last, before) {
            (Some(last), Some(before)) => last.at - before.at,
            // The mount counts whole seconds.
            (Some(last), None) => last.uptime.max(1.0),
            _ => 0.0,
        };
        (seconds.max(1e-3), before)
    }

    /// Requests of a kind during the window of the percentiles.
    fn recent(&self, operation: &str) -> Times {
        let Some(now) = self.samples.back().and_then(|sample| sample.operations.get(operation)) else {
            return Times::default();
        };
        let first = self.samples.len().saturating_sub(WINDOW + 1);
        match self.samples.get(first).filter(|_| self.samples.len() > 1) {
            Some(sample) => sample.operations.get(operation).map_or(now.clone(), |before| now.since(before)),
            None => now.clone(),
        }
    }

    /// The numbers of requests of a kind between neighbouring samples, the last ones at most.
    fn counts(&self, operation: &str, at_most: usize) -> Vec<u64> {
        let count = |sample: &Sample| sample.operations.get(operation).map_or(0, |times| times.count);
        let counts: Vec<u64> = self.samples.iter().map(count).collect();
        let steps =
            counts.iter().zip(counts.iter().skip(1)).map(|(before, after)| after.saturating_sub(*before));
        steps.skip(counts.len().saturating_sub(at_most + 1)).collect()
    }

    fn draw_requests(&self, frame: &mut Frame, area: Rect) {
        let Some(last) = self.samples.back() else { return };
        let (seconds, before) = self.interval();
        let since = |name: &str| {
            let now = last.operations.get(name).map_or(0, |times| times.count);
            let earlier =
                before.and_then(|sample| sample.operations.get(name)).map_or(0, |times| times.count);
            now.saturating_sub(earlier) as f64 / seconds
        };
        let mut rows: Vec<(&String, f64, Times)> = last
            .operations
            .iter()
            .filter(|(_, times)| times.count > 0)
            .map(|(name, _)| (name, since(name), self.recent(name)))
            .collect();
        match self.requests {
            // Equal rates are ordered by the counts since the mount began.
            RequestOrder::Rate => rows.sort_by(|one, other| {
                let all = |name: &String| last.operations.get(name).map_or(0, |times| times.count);
                other.1.total_cmp(&one.1).then(all(other.0).cmp(&all(one.0)))
            }),
            RequestOrder::Slowest => {
                let slow = |times: &Times| times.percentile(0.99).unwrap_or(0.0);
                rows.sort_by(|one, other| slow(&other.2).total_cmp(&slow(&one.2)));
            }
            RequestOrder::Name => {}
        }
        let order = match self.requests {
            RequestOrder::Rate => "by rate",
            RequestOrder::Slowest => "slowest first",
            RequestOrder::Name => "by name",
        };
        let bytes = |name: &str| {
            let key = match name {
                "read" => "read_bytes",
                "write" => "written_bytes",
                _ => return String::new(),
            };
            let more = last.number(key) - before.map_or(0.0, |sample| sample.number(key));
            format!("{}/s", human((more.max(0.0) / seconds) as u64))
        };
        let sparks = usize::from(area.width.saturating_sub(2 + 11 + 8 + 11 + 7 * 3 + 6));
        let rows = rows.iter().map(|(name, rate, times)| {
            let time = |share: f64| right(times.percentile(share).map_or("-".to_owned(), latency));
            Row::new([
                Cell::from(name.as_str()),
                right(number(*rate)),
                right(bytes(name)),
                time(0.5),
                time(0.9),
                time(0.99),
                Cell::from(spark(&self.counts(name, sparks)).cyan()),
            ])
        });
        let widths = [11, 8, 11, 7, 7, 7].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
        let table = Table::new(rows, widths)
            .header(header(["request", ">a second", ">bytes", ">p50", ">p90", ">p99", "history"]))
            .block(Block::bordered().title(format!(" Requests, {order} ")));
        frame.render_widget(table, area);
    }

    fn draw_daemon(&self, frame: &mut Frame, area: Rect, sample: &Sample) {
        let (seconds, before) = self.interval();
        let (opens, passed) = (sample.number("opens"), sample.number("passthrough_opens"));
        let share = if opens > 0.0 { (passed / opens).min(1.0) } else { 0.0 };
        let cpu = sample.number("cpu_seconds") - before.map_or(0.0, |sample| sample.number("cpu_seconds"));
        let room = usize::from(area.width.saturating_sub(2 + 13 + 6));
        // A narrow column has no room for more.
        let is_wide = area.width >= 60;
        let healed = if is_wide { format!(", {} healed", sample.count("healed")) } else { String::new() };
        let mut lines = vec![
            named("passthrough", format!("{:>4.0} % {}", share * 100.0, bar(share, room))),
            named(
                "memory",
                format!(
                    "{}, {} descriptors",
                    human(sample.count("resident_bytes")),
                    sample.count("descriptors")
                ),
            ),
            named("processor", format!("{:.0} % of one", (cpu / seconds).max(0.0) * 100.0)),
            named(
                "failures",
                format!(
                    "{}, {} corrupt{healed}",
                    counted(sample.count("errors"), "error"),
                    sample.count("corrupt")
                ),
            ),
            named(
                "pins, logs",
                format!("{}, {}", human(sample.count("pinned_bytes")), human(sample.count("log_bytes"))),
            ),
            named("open", counted(sample.count("open_collections"), "collection")),
        ];
        let budget = sample.count("decoded_budget_bytes");
        if budget > 0 {
            let held = human_part(sample.count("decoded_bytes"), budget);
            let [hits, misses] = ["decoded_hits", "decoded_misses"].map(|name| sample.number(name));
            let share = if hits > 0.0 { hits / (hits + misses) * 100.0 } else { 0.0 };
            let hits = if is_wide { format!(", {share:.0} % hits") } else { String::new() };
            lines.insert(1, named("decoded", format!("{held}{hits}")));
        }
        let block = Block::bordered().title(" Daemon ");
        frame.render_widget(Paragraph::new(lines).block(block), area);
    }

    fn draw_tensors(&self, frame: &mut Frame, area: Rect, sample: &Sample) {
        let mut tensors: Vec<&Tensor> = sample.hottest.iter().collect();
        let order = match self.tensors {
            TensorOrder::Score => "by score",
            TensorOrder::Accesses => {
                tensors.sort_by_key(|tensor| Reverse(tensor.accesses));
                "by accesses"
            }
            TensorOrder::Bytes => {
                tensors.sort_by_key(|tensor| Reverse(tensor.stored));
                "by stored bytes"
            }
        };
        // A narrow table shows only the number that orders it.
        let is_wide = area.width >= 60;
        let is_by_bytes = self.tensors == TensorOrder::Bytes;
        let number = if self.tensors == TensorOrder::Score { 6 } else { 9 };
        let numbers = if is_wide { 8 + 9 + 2 } else { number + 1 };
        let room = usize::from(area.width.saturating_sub(2 + 6 + 1 + numbers));
        let rows = tensors.iter().map(|tensor| {
            let heat = right(match self.tensors {
                TensorOrder::Accesses => tensor.accesses.to_string(),
                _ => format!("{:.1}", tensor.score),
            });
            let stored = right(human(tensor.stored));
            // The shares of a mixed tensor stand behind its name.
            let shares = match tensor.shares.as_str() {
                "" => String::new(),
                shares => format!("  {shares}"),
            };
            let left = room.saturating_sub(shares.chars().count());
            let name = Cell::from(format!("{}{shares}", shortened(&tensor.path, left)));
            let tier = Cell::from(tensor.tier.as_str()).style(tier_style(&tensor.tier));
            match (is_wide, is_by_bytes) {
                (true, _) => Row::new([name, tier, heat, stored]),
                (false, true) => Row::new([name, tier, stored]),
                (false, false) => Row::new([name, tier, heat]),
            }
        });
        let third = if self.tensors == TensorOrder::Accesses { ">accesses" } else { ">score" };
        let (name, tier) = (Constraint::Fill(1), Constraint::Length(6));
        let (heat, stored, number) =
            (Constraint::Length(8), Constraint::Length(9), Constraint::Length(number));
        let (widths, head) = match (is_wide, is_by_bytes) {
            (true, _) => (vec![name, tier, heat, stored], header(["tensor", "tier", third, ">stored"])),
            (false, true) => (vec![name, tier, number], header(["tensor", "tier", ">stored"])),
            (false, false) => (vec![name, tier, number], header(["tensor", "tier", third])),
        };
        let table = Table::new(rows, widths)
            .header(head)
            .block(Block::bordered().title(format!(" Hottest tensors, {order} ")));
        frame.render_widget(table, area);
    }

    fn draw_jobs(&self, frame: &mut Frame, area: Rect) {
        let jobs = self.jobs();
        // Requests and paths take what they need, at most a quarter and half of their room.
        let longest = |text: fn(&Job) -> &String| jobs.iter().map(|job| text(job).chars().count()).max();
        let room = usize::from(area.width.saturating_sub(2 + 2 + 4 + 3));
        let request = longest(|job| &job.request).unwrap_or(0).clamp(7, (room / 4).max(11));
        let room = room.saturating_sub(request);
        let path = longest(|job| &job.path).unwrap_or(0).clamp(4, (room / 2).max(4));
        let room = room.saturating_sub(path);
        let rows = jobs.iter().map(|job| {
            let state = match job.state.as_str() {
                "running" => progress(job, room),
                "waiting" => "waiting".dim(),
                "failed" => job.ended_text().red(),
                "cancelled" => "cancelled".yellow(),
                _ => without_time(&job.ended_text()).to_owned().green(),
            };
            Row::new([
                right(job.number.to_string()),
                Cell::from(beginning(&job.request, request)),
                Cell::from(shortened(&job.path, path)),
                Cell::from(state),
            ])
        });
        let [request, path] = [request, path].map(|columns| u16::try_from(columns).unwrap_or(u16::MAX));
        let widths = [4, request, path].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
        let table = Table::new(rows, widths)
            .header(header([">job", "request", "path", "progress"]))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .highlight_symbol("> ")
            .block(Block::bordered().title(" Jobs "));
        let chosen = jobs.iter().position(|job| Some(job.number) == self.chosen);
        let mut state = TableState::new().with_selected(chosen);
        frame.render_stateful_widget(table, area, &mut state);
    }
}

fn draw_tiers(frame: &mut Frame, area: Rect, sample: &Sample) {
    let all: u64 = sample.tiers.iter().map(|(_, bytes)| bytes.stored).sum();
    let logical: u64 = sample.tiers.iter().map(|(_, bytes)| bytes.logical).sum();
    let shown = usize::from(area.height.saturating_sub(2));
    let mut tiers: Vec<_> = sample.tiers.iter().collect();
    if tiers.len() > shown {
        // The largest ones, in the order of precision.
        let mut sizes: Vec<u64> = tiers.iter().map(|(_, bytes)| bytes.stored.max(bytes.logical)).collect();
        sizes.sort_by_key(|size| Reverse(*size));
        let least = sizes.get(shown.saturating_sub(1)).copied().unwrap_or(0);
        tiers.retain(|(_, bytes)| bytes.stored.max(bytes.logical) >= least);
    }
    let room = usize::from(area.width.saturating_sub(2 + 7 + 7 + 19));
    let lines: Vec<Line> = tiers
        .iter()
        .map(|(name, bytes)| {
            let share = if all > 0 { bytes.stored as f64 / all as f64 } else { 0.0 };
            Line::from(vec![
                Span::styled(format!("{name:<7}"), tier_style(name)),
                format!("{:>4.0} % ", share * 100.0).into(),
                Span::styled(bar(share, room), tier_style(name)),
                format!("{:>19}", human_part(bytes.stored, bytes.logical)).into(),
            ])
        })
        .collect();
    let title = format!(" Tiers: {} stored ", human_part(all, logical));
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(title)), area);
}

fn named(name: &str, text: String) -> Line<'static> {
    Line::from(vec![format!("{name:<13}").dim(), text.into()])
}

/// Names of columns; a leading `>` aligns to the right.
fn header<const N: usize>(names: [&'static str; N]) -> Row<'static> {
    let cell = |name: &'static str| match name.strip_prefix('>') {
        Some(name) => right(name.to_owned()),
        None => Cell::from(name),
    };
    Row::new(names.map(cell)).style(Style::new().add_modifier(Modifier::DIM))
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).alignment(Alignment::Right))
}

fn tier_style(tier: &str) -> Style {
    Style::new().fg(match tier {
        "exact" => Color::Blue,
        "packed" => Color::Cyan,
        "q8" => Color::Green,
        "q7" => Color::LightGreen,
        "q5" => Color::Yellow,
        "q3" | "q3x" => Color::LightRed,
        "absent" => Color::DarkGray,
        _ => Color::Magenta,
    })
}

fn progress(job: &Job, room: usize) -> Span<'static> {
    let (done, all) = (job.number_of("done_bytes"), job.number_of("bytes"));
    if all == 0 {
        return human(done).into();
    }
    let share = (done as f64 / all as f64).min(1.0);
    format!("{:>3.0} % {}", share * 100.0, bar(share, room.saturating_sub(6))).cyan()
}

/// The moves that the policy would make in a day without a use, in order.
fn draw_moves(frame: &mut Frame, area: Rect, moves: &[NextMove]) {
    let room = usize::from(area.width.saturating_sub(2 + 6 + 14 + 9 + 3));
    let rows = moves.iter().map(|step| {
        Row::new([
            right(format!("{}:{:02}", step.after / 3600, step.after / 60 % 60)),
            Cell::from(shortened(&step.path, room)),
            Cell::from(format!("{} → {}", step.from, step.to)).style(tier_style(&step.to)),
            right(human(step.freed)),
        ])
    });
    let widths = [Constraint::Length(6), Constraint::Fill(1), Constraint::Length(14), Constraint::Length(9)];
    let table = Table::new(rows, widths)
        .header(header([">in", "tensor", "move", ">frees"]))
        .block(Block::bordered().title(" Next moves of the policy, if nothing is used "));
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::{Value, json};

    use super::{Key, Screen, Wish};
    use crate::cli::top::feed::{NextMove, Sample};
    use crate::cli::top::plain;

    /// A fixed feed: the control files of a mount at a second of a minute.
    fn feed(second: u64) -> [Value; 3] {
        let reads = second * second * 10;
        let times = |count: u64, microseconds: f64| {
            let bounds = [1e-6, 4e-6, 16e-6, 64e-6, 256e-6, 1_024e-6, 4_096e-6];
            let counts = [0, 0, 0, count / 2, count * 9 / 10, count, count];
            let buckets: Vec<_> = bounds.iter().zip(counts).collect();
            json!({ "seconds": count as f64 * microseconds * 1e-6, "buckets": buckets })
        };
        let stats = json!({
            "store": "5f0e", "uptime_seconds": 3_700 + second, "tenants": 1, "collections": 2, "files": 131,
            "log_bytes": 160_000, "pinned_bytes": 4_194_304,
            "tiers": {
                "q5": { "blocks": 700, "logical_bytes": 70 << 20, "stored_bytes": 12 << 20 },
                "exact": { "blocks": 90, "logical_bytes": 20 << 20, "stored_bytes": 20 << 20 },
                "packed": { "blocks": 40, "logical_bytes": 10 << 20, "stored_bytes": 7 << 20 },
                "absent": { "blocks": 4, "logical_bytes": 1 << 20, "stored_bytes": 0 },
                "q8": { "blocks": 4, "logical_bytes": 1 << 20, "stored_bytes": 278_528 },
            },
            "operations": { "read": reads, "lookup": 40 + second, "open": 7, "write": 0, "statfs": 2 },
            "operation_times": {
                "read": times(reads, 90.0), "lookup": times(40 + second, 20.0), "open": times(7, 30.0),
                "statfs": times(2, 5.0),
            },
            "decoded_bytes": 120 << 20, "decoded_budget_bytes": 512 << 20, "decoded_hits": 9, "decoded_misses": 3,
            "opens": 7, "passthrough_opens": 5, "reads": reads, "read_bytes": reads * 131_072,
            "written_bytes": 0, "errors": 1, "corrupt": 0, "healed": 0,
            "resident_bytes": 55_000_000, "cpu_seconds": 12.0 + second as f64 * 0.37, "descriptors": 23,
            "open_collections": 2, "problems": ["acme/llama: torn end"],
        });
        let jobs = json!([
            { "job": 1, "request": "tier=q5", "path": "acme/minilm", "state": "done", "seconds": 2.5,
              "text": "37 of 104 tensors now q5", "done_bytes": 90, "bytes": 90 },
            { "job": 2, "request": "scrub", "path": "/", "state": "running", "seconds": 3.0,
              "done_bytes": 40 << 20, "bytes": 100 << 20 },
            { "job": 3, "request": "tier=q3", "path": "acme/a-collection-with-a-long-name/model.safetensors",
              "state": "waiting", "done_bytes": 0, "bytes": 10 << 20 },
            { "job": 4, "request": "compact", "path": "acme/minilm", "state": "failed", "error": "no space" },
        ]);
        let tensor = |path: &str, tier: &str, score: f64, accesses: u64, bytes: u64| {
            json!({ "path": path, "tier": tier, "score": score, "accesses": accesses, "bytes": bytes * 4,
                    "bytes_stored": bytes })
        };
        let hottest = json!([
            tensor("acme/minilm/encoder.layer.0.attention.self.query.weight", "q5", 912.5, 40, 101_376),
            tensor("acme/minilm/embeddings.word_embeddings.weight", "exact", 640.0, 12, 46_881_792),
            tensor("acme/x/\u{1b}[31mred\u{7}\n", "mixed", 0.5, 99, 17),
        ]);
        [stats, jobs, hottest]
    }

    fn screen(seconds: std::ops::Range<u64>) -> Screen {
        let mut screen = Screen::new("/mnt".to_owned(), "/srv/store".to_owned());
        for second in seconds {
            let [stats, jobs, hottest] = feed(second);
            screen.add(Sample::of(&stats, &jobs, &hottest, second as f64));
        }
        screen
    }

    fn drawn(screen: &Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        plain(terminal.backend().buffer())
    }

    /// Compares a picture with the one in tests/golden. TIERFS_BLESS=1 writes it, to be looked at.
    fn is_golden(name: &str, picture: &str) {
        let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("TIERFS_BLESS").is_some() {
            std::fs::write(&path, picture).unwrap();
        }
        assert_eq!(picture, std::fs::read_to_string(&path).unwrap(), "{path}");
    }

    #[test]
    fn a_fixed_feed_makes_the_expected_picture_on_a_small_terminal() {
        is_golden("top-80x24.txt", &drawn(&screen(0..30), 80, 24));
    }

    #[test]
    fn a_fixed_feed_makes_the_expected_picture_on_a_large_terminal() {
        is_golden("top-200x60.txt", &drawn(&screen(0..30), 200, 60));
    }

    #[test]
    fn decoded_copies_are_shown_where_they_have_a_budget() {
        for (width, height) in [(80, 24), (200, 60)] {
            let picture = drawn(&screen(0..3), width, height);
            assert!(picture.contains("decoded      120.0 of 512.0 MiB"), "{picture}");
            let [mut stats, jobs, hottest] = feed(3);
            stats["decoded_budget_bytes"] = 0.into();
            let mut off = Screen::new(String::new(), String::new());
            off.add(Sample::of(&stats, &jobs, &hottest, 3.0));
            assert!(!drawn(&off, width, height).contains("decoded"));
        }
    }

    #[test]
    fn any_size_and_no_samples_are_drawn_too() {
        for (width, height) in [(1, 1), (3, 2), (20, 5), (40, 12), (500, 3), (79, 200)] {
            drawn(&screen(0..3), width, height);
            drawn(&screen(0..0), width, height);
        }
    }

    #[test]
    fn control_characters_of_names_do_not_reach_the_terminal() {
        let picture = drawn(&screen(0..3), 200, 60);
        assert!(picture.contains("acme/x/[31mred"), "{picture}");
        assert!(picture.chars().all(|letter| letter == '\n' || !letter.is_control()));
    }

    #[test]
    fn keys_change_the_orders() {
        let mut screen = screen(0..30);
        let first = |screen: &Screen, title: &str| {
            let picture = drawn(screen, 200, 60);
            let lines: Vec<&str> = picture.lines().collect();
            let at =
                lines.iter().position(|line| line.contains(title)).unwrap_or_else(|| panic!("{picture}"));
            lines[at + 2].trim_start_matches('│').trim_start().split(' ').next().unwrap().to_owned()
        };
        assert_eq!(first(&screen, "Requests, by rate"), "read");
        assert_eq!(
            first(&screen, "tensors, by score"),
            "acme/minilm/encoder.layer.0.attention.self.query.weight"
        );
        for key in ['s', 's', 'h'] {
            assert_eq!(screen.press(Key::Letter(key)), Wish::Nothing);
        }
        assert_eq!(first(&screen, "Requests, by name"), "lookup");
        assert_eq!(first(&screen, "tensors, by accesses"), "acme/x/[31mred");
        screen.press(Key::Letter('h'));
        assert_eq!(first(&screen, "tensors, by stored"), "acme/minilm/embeddings.word_embeddings.weight");
        screen.press(Key::Letter('s'));
        assert_eq!(first(&screen, "Requests, by rate"), "read");
    }

    #[test]
    fn a_key_shows_the_next_moves_of_the_policy_and_hides_them() {
        let mut screen = screen(0..3);
        assert_eq!(screen.press(Key::Letter('p')), Wish::Foresee);
        let moves = json!([
            { "path": "acme/minilm/a.weight", "after_seconds": 3900, "from": "exact", "to": "packed",
              "bytes": 4_194_304, "bytes_after": 4_194_304, "why": "it is not used" },
            { "path": "acme/x/\u{1b}[31mred", "after_seconds": 39_660, "from": "packed", "to": "q8",
              "bytes": 4_194_304, "bytes_after": 1_114_112 },
        ]);
        screen.foresee(NextMove::of(&moves));
        for (width, height) in [(80, 24), (200, 60)] {
            let picture = drawn(&screen, width, height);
            for text in
                ["Next moves of the policy", "1:05", "exact → packed", "11:01", "packed → q8", "2.9 MiB"]
            {
                assert!(picture.contains(text), "{text}: {picture}");
            }
        }
        assert_eq!(screen.press(Key::Letter('p')), Wish::Nothing);
        assert!(drawn(&screen, 80, 24).contains("Hottest tensors"));
        screen.foresee(NextMove::of(&json!("hostile")));
        for (width, height) in [(1, 1), (20, 5), (500, 3)] {
            drawn(&screen, width, height);
        }
    }

    #[test]
    fn a_chosen_job_is_cancelled_after_a_question() {
        let mut screen = screen(0..3);
        assert_eq!(screen.press(Key::Letter('c')), Wish::Nothing);
        assert!(drawn(&screen, 80, 24).contains("cancel job 2?"));
        assert_eq!(screen.press(Key::Letter('n')), Wish::Nothing);
        assert!(!drawn(&screen, 80, 24).contains("cancel job"));
        screen.press(Key::Down);
        screen.press(Key::Letter('c'));
        assert_eq!(screen.press(Key::Letter('y')), Wish::Cancel(3));
        // A job that has ended cannot be cancelled.
        for _ in 0..9 {
            screen.press(Key::Down);
        }
        assert_eq!(screen.press(Key::Letter('c')), Wish::Nothing);
        assert!(drawn(&screen, 80, 24).contains("no job that waits or runs"));
        assert_eq!(screen.press(Key::Letter('y')), Wish::Nothing);
        assert_eq!(screen.press(Key::Letter('q')), Wish::Leave);
        assert_eq!(screen.press(Key::Escape), Wish::Leave);
    }
}
