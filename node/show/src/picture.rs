//! What a board shows of a run, at any size of the terminal.

use std::borrow::Cow;
use std::time::Duration;

use muster_view::View;
use muster_view::plot::shown;
use muster_view::story::{BanLine, MemberLine, Story};
use muster_view::words::counted;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Axis, Block, Borders, Cell, Chart, Dataset, Gauge, GraphType, Paragraph, Row, Table, Wrap,
};

use super::lines;

/// Bans that are listed, the newest ones.
const BANS: usize = 4;
/// Columns from which two things stand beside each other, and lines from which the loss has a chart.
const WIDE: u16 = 92;
const HIGH: u16 = 22;

/// What a board says besides the run itself.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// What this program does: "hosting", "taking part".
    pub doing: &'static str,
    /// Where members can dial it.
    pub addresses: Vec<String>,
    /// Where a browser sees the run.
    pub page: Option<String>,
    /// What keys do.
    pub keys: &'static str,
    /// Names of members that are known to cheat: in a rehearsal.
    pub attackers: Vec<String>,
}

/// A run as it is drawn once.
pub(super) struct Picture<'a> {
    /// The run.
    pub(super) view: &'a View,
    /// What is around it.
    pub(super) seen: &'a Surroundings,
    /// Whether colours are wanted.
    pub(super) colour: bool,
    /// Whether somebody has asked it to stop.
    pub(super) stopping: bool,
    /// How long the board has been there.
    pub(super) elapsed: Duration,
}

impl Picture<'_> {
    /// Draws it.
    pub(super) fn draw(&self, frame: &mut Frame<'_>, story: &Story) {
        let area = frame.area();
        let log = match area.height {
            _ if lines::newest(1).is_empty() => 0,
            height if height < HIGH => 4,
            height => height / 4,
        };
        let [title, gauge, waits, body, said, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(2),
            Constraint::Fill(1),
            Constraint::Length(log),
            Constraint::Length(1),
        ])
        .areas(area);
        frame.render_widget(self.title(story), title);
        frame.render_widget(self.gauge(story), gauge);
        frame.render_widget(
            Paragraph::new(story.alarm().unwrap_or_else(|| story.waits.clone())).wrap(Wrap { trim: true }),
            waits,
        );
        self.body(frame, story, body, area.height >= HIGH);
        let room = usize::from(said.height.saturating_sub(1));
        let lines: Vec<Line<'_>> = lines::newest(room)
            .iter()
            .map(|line| fitted(brief(line).into_owned().into(), said.width))
            .collect();
        frame.render_widget(Paragraph::new(lines).block(self.block("What happens")), said);
        let keys_say = if self.stopping {
            "stopping when the round is over · q or Ctrl-C again: now"
        } else {
            self.seen.keys
        };
        frame.render_widget(Paragraph::new(keys_say).style(self.faint()), keys);
    }

    /// What is between the head and the log; the loss has a chart on a `high` terminal.
    fn body(&self, frame: &mut Frame<'_>, story: &Story, body: Rect, high: bool) {
        let halves = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).spacing(3);
        let [left, right] = if body.width >= WIDE { halves.areas(body) } else { [body; 2] };
        let facts: Vec<_> = self.facts(story).into_iter().map(|fact| fitted(fact, left.width)).collect();
        let rows = facts.len() as u16;
        let bans = match story.bans.len() {
            0 => 0,
            count => count.min(BANS) as u16 + 1,
        };
        if body.width >= WIDE {
            let [top, below] =
                Layout::vertical([Constraint::Length(rows + 1), Constraint::Fill(1)]).areas(left);
            let [members, banned] =
                Layout::vertical([Constraint::Fill(1), Constraint::Length(bans)]).areas(right);
            frame.render_widget(Paragraph::new(facts), top);
            self.loss(frame, story, below);
            self.members(frame, story, members);
            self.bans(frame, story, banned);
        } else {
            let chart = if high { body.height.saturating_sub(rows + bans + 1) / 2 } else { 0 };
            let [top, banned, middle, below] = Layout::vertical([
                Constraint::Length(rows),
                Constraint::Length(bans),
                Constraint::Length(chart),
                Constraint::Fill(1),
            ])
            .areas(body);
            frame.render_widget(Paragraph::new(facts), top);
            self.bans(frame, story, banned);
            self.loss(frame, story, middle);
            self.members(frame, story, below);
        }
    }

    fn title(&self, story: &Story) -> Paragraph<'_> {
        let name = self.view.manifest.name.to_string();
        let strong = Style::new().add_modifier(Modifier::BOLD);
        Paragraph::new(Line::from(vec![
            Span::styled(name, strong),
            Span::raw(format!(" · {} · {}", self.seen.doing, story.stage)),
        ]))
    }

    fn gauge(&self, story: &Story) -> Gauge<'_> {
        let all = self.view.manifest.training.rounds;
        let done = story.rounds.last().map_or(0, |round| round.round + 1);
        let elapsed = clock(self.elapsed.as_secs_f64());
        let left = story
            .rest(all.saturating_sub(done))
            .map_or_else(String::new, |left| format!(" < {}", clock(left)));
        let style = if self.colour { Style::new().fg(Color::Cyan) } else { Style::new() };
        Gauge::default()
            .ratio((f64::from(done) / f64::from(all.max(1))).clamp(0.0, 1.0))
            .label(format!("round {done}/{all} [{elapsed}{left}]"))
            .gauge_style(style)
            .use_unicode(true)
    }

    /// What counts: what this member did, or what the run came to.
    fn facts(&self, story: &Story) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        let me = self.view.me.and_then(|me| story.member(&format!("{me:#}")));
        if let Some(me) = me {
            lines.push(fact("you", me.label()));
            let share = me
                .share
                .map_or_else(String::new, |share| format!(", {:.1} % of the last round", 100.0 * share));
            lines.push(fact(
                "counted",
                format!("{} in {}{share}", counted(me.leaves, "leaf"), counted(me.rounds, "round")),
            ));
            lines.push(fact(
                "verified",
                format!("{} recomputed and found right", counted(me.verified, "leaf")),
            ));
            if let Some(penalty) = &me.penalty {
                lines.push(fact("but", penalty.words()));
            }
        }
        let of = |role| {
            let active = story.members.iter().filter(|member| member.standing == "active");
            active.filter(|member| member.role == role).count()
        };
        let (nodes, verifiers) = (of("node"), of("verifier"));
        lines.push(fact("here", format!("{}, {}", counted(nodes, "node"), counted(verifiers, "verifier"))));
        if let Some(last) = story.rounds.last() {
            let speed = last.phases.seconds.map(|seconds| last.tokens as f64 / seconds.max(1e-3));
            let speed =
                speed.map_or_else(String::new, |speed| format!(", {} tokens/s", shown(speed.round())));
            let loss =
                if last.leaves > 0 { format!("loss {:.3}", last.loss) } else { "nobody counted".into() };
            lines.push(fact("last round", format!("{loss}{speed}")));
        }
        if let Some((round, loss)) = story.held_out.last_key_value() {
            lines.push(fact("held out", format!("loss {loss:.3} before round {round}")));
        }
        let [passed, guilty, silent] = story.audits.counts();
        let audits = format!("{passed} passed, {guilty} found something, {silent} unanswered");
        lines.push(fact("audits", audits));
        lines.push(fact("bans", story.bans.len().to_string()));
        if !self.seen.addresses.is_empty() {
            lines.push(fact("dial", self.seen.addresses.join(", ")));
        }
        if let Some(page) = &self.seen.page {
            lines.push(fact("pages", page.clone()));
        }
        lines
    }

    fn loss(&self, frame: &mut Frame<'_>, story: &Story, area: Rect) {
        let rounds = story.rounds.iter().filter(|line| line.leaves > 0);
        let training: Vec<(f64, f64)> = rounds.map(|line| (f64::from(line.round), line.loss)).collect();
        let held: Vec<(f64, f64)> =
            story.held_out.iter().map(|(round, loss)| (f64::from(*round), *loss)).collect();
        if area.height < 5 || training.len() < 2 {
            return;
        }
        let all = || training.iter().chain(&held);
        let low = all().map(|(_, loss)| *loss).fold(f64::INFINITY, f64::min);
        let high = all().map(|(_, loss)| *loss).fold(f64::NEG_INFINITY, f64::max).max(low + 1e-3);
        let last = all().map(|(round, _)| *round).fold(1.0, f64::max);
        let colour = |colour| if self.colour { Style::new().fg(colour) } else { Style::new() };
        let line = |name: &'static str, points, style| {
            Dataset::default()
                .name(name)
                .data(points)
                .marker(Marker::Braille)
                .graph_type(GraphType::Line)
                .style(style)
        };
        let mut lines = vec![line("training", &training, colour(Color::Cyan))];
        if held.len() > 1 {
            lines.push(line("held out", &held, colour(Color::Yellow)));
        }
        let chart = Chart::new(lines)
            .block(self.block("Loss, nats a token"))
            .x_axis(Axis::default().bounds([0.0, last]).labels(["0".to_owned(), format!("{last:.0}")]))
            .y_axis(Axis::default().bounds([low, high]).labels([format!("{low:.2}"), format!("{high:.2}")]));
        frame.render_widget(chart, area);
    }

    /// Who is out, and what for: the newest first.
    fn bans(&self, frame: &mut Frame<'_>, story: &Story, area: Rect) {
        let style = if self.colour { Style::new().fg(Color::Red) } else { Style::new() };
        let called =
            |id: &str| story.member(id).map_or(id.get(..8).unwrap_or(id), MemberLine::called).to_owned();
        let line = |ban: &BanLine| {
            let BanLine { effective, finding, round, .. } = ban;
            let who = Span::styled(called(&ban.member), style.add_modifier(Modifier::BOLD));
            let what = format!(" from round {effective}: {finding} in round {round}");
            fitted(Line::from(vec![who, Span::styled(what, style)]), area.width)
        };
        let lines: Vec<Line<'_>> = story.bans.iter().rev().take(BANS).map(line).collect();
        frame.render_widget(Paragraph::new(lines).block(self.block("Banned")), area);
    }

    fn members(&self, frame: &mut Frame<'_>, story: &Story, area: Rect) {
        let me = self.view.me.map(|me| format!("{me:#}"));
        let mut members: Vec<&MemberLine> = story.members.iter().collect();
        let own = |member: &MemberLine| Some(&member.id) == me.as_ref();
        members.sort_by_key(|member| (!own(member), std::cmp::Reverse(member.leaves), member.admitted));
        let room = usize::from(area.height.saturating_sub(2));
        let title = match members.len() {
            all if all > room => format!("Members, {room} of {all}"),
            _ => "Members".to_owned(),
        };
        let row = |member: &&MemberLine| {
            let attacks = member.standing != "banned" && self.seen.attackers.contains(&member.name);
            let standing = match member.role {
                "node" if attacks => "attacker",
                "node" => member.standing,
                role => role,
            };
            let share =
                member.share.map_or_else(|| "–".to_owned(), |share| format!("{:.1} %", 100.0 * share));
            let style = match member.standing {
                "banned" if self.colour => Style::new().fg(Color::Red),
                _ if attacks && self.colour => Style::new().fg(Color::Yellow),
                _ if own(member) => Style::new().add_modifier(Modifier::BOLD),
                _ => Style::new(),
            };
            let number = |text: String| Cell::from(Line::from(text).alignment(Alignment::Right));
            Row::new([
                Cell::from(label(member)),
                Cell::from(standing),
                number(member.leaves.to_string()),
                number(member.verified.to_string()),
                number(share),
            ])
            .style(style)
        };
        let widths = [
            Constraint::Fill(1),
            Constraint::Length(8),
            Constraint::Length(8),
            Constraint::Length(8),
            Constraint::Length(7),
        ];
        let head = ["member", "", "leaves", "verified", "share"].map(|title| {
            if title == "member" { Line::from(title) } else { Line::from(title).alignment(Alignment::Right) }
        });
        let table = Table::new(members.iter().take(room).map(row), widths)
            .header(Row::new(head.map(Cell::from)).style(self.faint()))
            .block(self.block(title));
        frame.render_widget(table, area);
    }

    fn block(&self, title: impl Into<String>) -> Block<'static> {
        Block::new().borders(Borders::TOP).title(title.into()).border_style(self.faint())
    }

    fn faint(&self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }
}

/// A member's name beside the beginning of its key, as far as there is room.
fn label(member: &MemberLine) -> String {
    match &*member.name {
        "" => member.short.clone(),
        name => format!("{name} · {}", member.short.get(..8).unwrap_or_default()),
    }
}

/// A line that says so where it is cut: a number without its last digits would be another one.
fn fitted(line: Line<'static>, width: u16) -> Line<'static> {
    let room = usize::from(width);
    if line.width() <= room {
        return line;
    }
    let mut left = room.saturating_sub(1);
    let mut spans = Vec::new();
    for span in line.spans {
        // By columns: a character may take two.
        let mut kept = Span::styled(String::new(), span.style);
        for character in span.content.chars() {
            let longer = Span::styled(format!("{}{character}", kept.content), span.style);
            if longer.width() > left {
                break;
            }
            kept = longer;
        }
        let is_whole = kept.content == span.content;
        left -= kept.width();
        spans.push(kept);
        if !is_whole {
            break;
        }
    }
    spans.push(Span::raw("…"));
    Line::from(spans)
}

/// A line of the log without its date, and without the level where it is the usual one.
fn brief(line: &str) -> Cow<'_, str> {
    let parts = line.split_once('Z').and_then(|(time, rest)| Some((time.split_once('T')?.1.get(..8)?, rest)));
    let Some((time, rest)) = parts else { return line.into() };
    let rest = rest.trim_start();
    format!("{time} {}", rest.strip_prefix("INFO ").unwrap_or(rest)).into()
}

fn fact(name: &str, text: String) -> Line<'static> {
    Line::from(vec![
        Span::styled(format!("{name:>10}  "), Style::new().add_modifier(Modifier::DIM)),
        Span::raw(text),
    ])
}

/// Seconds as people read them.
fn clock(seconds: f64) -> String {
    let seconds = seconds as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) if hours < 48 => format!("{hours}:{minutes:02}:{seconds:02}"),
        (hours, ..) => format!("{} days", hours / 24),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_core::ids::MemberId;
    use muster_core::manifest::fixture;
    use muster_view::story::{Phases, RoundLine};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn story() -> Story {
        let mut story = Story::default();
        (story.stage, story.waits) = ("computing", "Round 12: 4 seats compute.".into());
        story.rounds = (0..12)
            .map(|round| RoundLine {
                round,
                leaves: 16,
                tokens: 512,
                loss: 5.0 - 0.2 * f64::from(round),
                phases: Phases { seconds: Some(90.0), ..Phases::default() },
                ..RoundLine::default()
            })
            .collect();
        story.held_out.insert(10, 3.5);
        let member = |number: usize| MemberLine {
            id: format!("{number:064x}"),
            short: format!("{number:016x}"),
            name: match number {
                2 => "Mallory".into(),
                38 => "Eve".into(),
                39 => "Ada".into(),
                _ => String::new(),
            },
            role: if number == 0 { "verifier" } else { "node" },
            admitted: number as u64,
            standing: if number == 2 { "banned" } else { "active" },
            leaves: 10 * number as u64,
            share: Some(0.25),
            ..MemberLine::default()
        };
        story.enlist((0..40).map(member).collect());
        story.bans.push(BanLine {
            height: 9,
            member: format!("{:064x}", 2),
            round: 7,
            effective: 9,
            finding: "sum mismatch",
            evidence: String::new(),
            accuser: format!("{:064x}", 39),
        });
        story
    }

    fn drawn(width: u16, height: u16, story: &Story, colour: bool) -> (String, bool) {
        let view = View::told(
            Arc::new(fixture::tiny(MemberId([1; 32]), MemberId([2; 32]), 20, 4)),
            Story::default(),
        );
        let seen = Surroundings {
            doing: "hosting",
            addresses: vec!["192.0.2.1:7777".into()],
            page: Some("http://x/".into()),
            keys: "q or Ctrl-C: stop",
            attackers: vec!["Eve".into()],
        };
        let picture =
            Picture { view: &view, seen: &seen, colour, stopping: false, elapsed: Duration::from_secs(75) };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| picture.draw(frame, story)).unwrap();
        let buffer = terminal.backend().buffer();
        let coloured = buffer.content().iter().any(|cell| cell.fg != Color::Reset);
        let rows = buffer.content().chunks(usize::from(width));
        let rows: Vec<String> = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect()).collect();
        (rows.join("\n"), coloured)
    }

    #[test]
    fn what_does_not_fit_says_so() {
        let line = |words: [&'static str; 2]| Line::from(words.map(Span::raw).to_vec());
        for (width, shown) in [(14, "Eve in round 1"), (13, "Eve in round…"), (3, "Ev…"), (1, "…"), (0, "…")]
        {
            assert_eq!(fitted(line(["Eve", " in round 1"]), width).to_string(), shown);
        }
        // Wide characters take two columns each.
        for (width, shown) in [(9, "日本 in 1"), (8, "日本 in…"), (5, "日本…"), (4, "日…"), (2, "…")]
        {
            let fit = fitted(line(["日本", " in 1"]), width);
            assert_eq!((fit.to_string().as_str(), fit.width() <= 9), (shown, true));
        }
    }

    #[test]
    fn a_wide_terminal_shows_everything() {
        let (text, coloured) = drawn(120, 36, &story(), true);
        for words in [
            "hosting · computing",
            "round 12/",
            "[1:15",
            "4 seats compute",
            "38 nodes, 1 verifier",
            "loss 2.800",
            "before round 10",
            "192.0.2.1:7777",
            "http://x/",
            "Loss, nats a token",
            "Members",
            "Ada · 00000000",
            "Eve · 00000000",
            "attacker",
            "Mallory from round 9: sum mismatch in round 7",
            "390",
            "q or Ctrl-C",
        ] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
        assert!(coloured);
    }

    #[test]
    fn a_narrow_one_shows_what_matters() {
        let mut story = story();
        let (text, coloured) = drawn(40, 24, &story, false);
        for words in ["round 12/", "38 nodes", "q or Ctrl-C", "Members, "] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
        assert!(!coloured, "no colour when it is not wanted");
        // Nothing is too small to be drawn on, and a run without a round is drawn as well.
        story = Story::default();
        for (width, height) in [(1, 1), (10, 3), (20, 8), (200, 5), (40, 80)] {
            drawn(width, height, &story, true);
        }
    }

    #[test]
    fn times_are_short() {
        assert_eq!([5.0, 75.0, 3_661.0, 200_000.0].map(clock), ["0:05", "1:15", "1:01:01", "2 days"]);
        assert_eq!(story().rest(10), Some(900.0));
    }

    #[test]
    fn lines_of_the_log_are_short() {
        assert_eq!(
            brief("2026-11-26T03:50:31.389820Z  INFO round 4/9: loss 1"),
            "03:50:31 round 4/9: loss 1"
        );
        assert_eq!(brief("2026-11-26T03:50:31.389820Z  WARN no room"), "03:50:31 WARN no room");
        assert_eq!(brief("Zeus said Time"), "Zeus said Time");
    }
}
