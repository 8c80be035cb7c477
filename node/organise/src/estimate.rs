//! What a run comes to before it begins: tokens, passes over the text, hours of machines like one that was measured.

use muster_core::manifest::Manifest;
use muster_view::words::counted;

/// Passes beyond which a model learns its text by heart and little else.
const MOST_PASSES: f64 = 10.0;

/// What a run computes when as many nodes take part as it begins with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Nodes that share each round.
    pub nodes: u32,
    /// Leaves of a node in a round, as one machine computes them: of local updates, those of all its segments.
    pub leaves: u32,
    /// Rounds.
    pub rounds: u32,
    /// Tokens that all of them read.
    pub tokens: u64,
    /// How often that is the whole text.
    pub passes: f64,
}

impl Estimate {
    /// Of a run.
    pub fn of(manifest: &Manifest) -> Self {
        let nodes = u32::from(manifest.admission.start_nodes).max(1);
        let (seat, rounds) = (manifest.leaves_of_seat(nodes), manifest.training.rounds);
        let windows = u64::from(nodes) * u64::from(seat) * u64::from(manifest.windows_of_leaf());
        let windows = windows.saturating_mul(rounds.into());
        Self {
            nodes,
            leaves: seat * manifest.windows_of_leaf() / manifest.training.leaf_windows.max(1),
            rounds,
            tokens: windows.saturating_mul(manifest.model.sequence.into()),
            passes: windows as f64 / manifest.windows().max(1) as f64,
        }
    }

    /// Tokens and passes, in words.
    pub fn text(&self) -> String {
        let passes = match self.passes {
            less if less < 0.95 => format!("{:.0} % of the text", (100.0 * less).max(1.0)),
            some if some < 9.5 => format!("the text {some:.1} times"),
            many => format!("the text {} times", grouped(many.round() as u64)),
        };
        let tokens = grouped(self.tokens);
        format!("{} read about {tokens} tokens: {passes}", counted(self.rounds, "round"))
    }

    /// How long it computes on machines that take so many seconds for a leaf and for what follows a round's leaves, in words.
    pub fn time(&self, leaf: f64, update: f64) -> String {
        let seconds = f64::from(self.rounds) * (f64::from(self.leaves) * leaf + update);
        let machines = match self.nodes {
            1 => "one machine like this one".into(),
            many => format!("{many} machines like this one"),
        };
        format!("about {} of computing on {machines}", span(seconds))
    }
}

/// What an organiser should know of a run that reads its text again and again.
pub(super) fn worn(manifest: &Manifest) -> Option<String> {
    let estimate = Estimate::of(manifest);
    (estimate.passes > MOST_PASSES).then(|| {
        let rounds = (f64::from(estimate.rounds) * MOST_PASSES / estimate.passes).max(1.0) as u32;
        format!(
            "the run reads its text {} times; beyond {MOST_PASSES:.0} passes a model learns the text by heart and little \
             else. Pack more text, choose a smaller preset, or set training.rounds to {rounds}",
            grouped(estimate.passes.round() as u64)
        )
    })
}

/// A span of time as people say it.
pub fn span(seconds: f64) -> String {
    let whole = |value: f64, noun| counted(value.round() as u64, noun);
    match seconds {
        few if few < 59.5 => whole(few.max(1.0), "second"),
        some if some < 59.5 * 60.0 => whole(some / 60.0, "minute"),
        hours if hours < 47.5 * 3600.0 => whole(hours / 3600.0, "hour"),
        days => whole(days / 86_400.0, "day"),
    }
}

/// A number with a comma between its thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| core::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use muster_core::ids::{Digest, MemberId};
    use muster_core::manifest::{Data, Start, Tokeniser};

    use super::*;
    use crate::config::local::Local;
    use crate::config::{Makers, Settings};

    fn manifest(bytes: u64, change: impl FnOnce(&mut Settings)) -> Manifest {
        let mut settings = Settings::default();
        (settings.training.rounds, settings.training.leaves, settings.training.leaf_windows) = (100, 8, 2);
        (settings.model.sequence, settings.admission.start_nodes) = (64, 4);
        change(&mut settings);
        let makers = Makers { organiser: MemberId([1; 32]), steward: MemberId([2; 32]), nonce: [3; 16] };
        let data = Data {
            root: Digest::default(),
            bytes,
            held_out_root: Digest::default(),
            held_out_bytes: 1 << 10,
            tokeniser: Tokeniser::Bytes,
            start: Start::Drawn,
            router: None,
        };
        settings.manifest(&makers, data).unwrap()
    }

    #[test]
    fn tokens_passes_and_hours_are_those_of_the_settings() {
        // 100 rounds of 8 leaves of 2 windows of 64 tokens.
        let estimate = Estimate::of(&manifest(64 * 400 + 1, |_| {}));
        assert_eq!((estimate.tokens, estimate.passes, estimate.leaves), (102_400, 4.0, 2));
        assert_eq!(estimate.text(), "100 rounds read about 102,400 tokens: the text 4.0 times");
        assert_eq!(estimate.time(30.0, 12.0), "about 2 hours of computing on 4 machines like this one");
        let alone = Estimate::of(&manifest(64 * 6400 + 1, |settings| settings.admission.start_nodes = 1));
        assert_eq!(alone.text(), "100 rounds read about 102,400 tokens: 25 % of the text");
        assert!(alone.time(0.001, 0.0).ends_with("1 second of computing on one machine like this one"));
        // Each node has a chain of 8 segments of 4 steps.
        let local = Estimate::of(&manifest(1 << 20, |settings| settings.local = Some(Local::default())));
        assert_eq!((local.leaves, local.tokens), (32, 100 * 4 * 32 * 2 * 64));
    }

    #[test]
    fn more_than_ten_passes_are_warned_of() {
        assert_eq!(worn(&manifest(64 * 160 + 1, |_| {})), None, "ten passes");
        let warning = worn(&manifest(64 * 4 + 1, |_| {})).unwrap();
        assert!(warning.contains("400 times") && warning.contains("training.rounds to 2"), "{warning}");
    }

    #[test]
    fn spans_are_said_in_the_unit_that_fits() {
        let said = [0.2, 1.0, 61.0, 3540.0, 3600.0, 100_000.0, 1e6].map(span);
        assert_eq!(said, ["1 second", "1 second", "1 minute", "59 minutes", "1 hour", "28 hours", "12 days"]);
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
