//! A text that is longer than a tokeniser should get at once, in windows whose numbers are those of the whole text.
//!
//! Rules may treat the two ends of whatever they get in their own way: put a space before it, or make no token that would go on
//! beyond it. Neighbouring windows therefore share some text, and are joined at a place in it where both have an end of one token
//! and the beginning of the next, with the same tokens before and after.

/// Bytes of text that neighbouring windows share on each side of the place where they should be joined, at most.
const SHARED: usize = 1024;

/// A stretch of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) text: String,
    /// Where it should be joined to the window before it; 0 where it begins the text.
    joint: usize,
    /// Where it should be joined to the window after it; its length where it ends the text.
    next: usize,
    /// Whether the text ends with it.
    pub(super) ends: bool,
}

/// Cuts texts that come piece by piece into windows.
pub(super) struct Cutter {
    /// Bytes of a window beside what it shares.
    most: usize,
    shared: usize,
    /// What is in no window yet, and before it what the next window shares.
    rest: String,
    joint: usize,
}

impl Cutter {
    pub(super) fn new(most: usize) -> Self {
        Self { most, shared: SHARED.min(most / 4), rest: String::new(), joint: 0 }
    }

    /// Goes on with the text; `ends` says that nothing more of it comes.
    pub(super) fn push(&mut self, piece: &str, ends: bool, windows: &mut Vec<Window>) {
        self.rest.push_str(piece);
        while self.rest.len() - self.joint > self.most + self.shared {
            let next = self.joint + cut(&self.rest[self.joint..], self.most);
            let after = self.rest.ceil_char_boundary(next + self.shared);
            let text = self.rest[..after].to_owned();
            windows.push(Window { text, joint: self.joint, next, ends: false });
            let before = self.rest.floor_char_boundary(next.saturating_sub(self.shared));
            self.rest.drain(..before);
            self.joint = next - before;
        }
        if ends {
            let (text, joint) = (core::mem::take(&mut self.rest), core::mem::take(&mut self.joint));
            windows.push(Window { next: text.len(), text, joint, ends });
        }
    }
}

/// Where a text is cut so that at most `most` bytes precede, and the cut is likely to lie between tokens whatever the rules are:
/// before a line that begins with a letter or so, else before a word, else between characters.
fn cut(text: &str, most: usize) -> usize {
    let within = text.floor_char_boundary(most);
    let within = if within == 0 { text.ceil_char_boundary(1) } else { within };
    let next = |at: &usize| text[*at..].chars().next().is_some_and(|next| !next.is_whitespace());
    let before = |at: usize| text[..at].chars().next_back().is_some_and(|before| !before.is_whitespace());
    let line = || text[..within].rmatch_indices('\n').map(|(at, _)| at + 1).take(64).find(next);
    let word = || text[..within].rmatch_indices(' ').map(|(at, _)| at).take(64).find(|at| before(*at));
    line().or_else(word).unwrap_or(within)
}

/// A token of a window: its number, and which bytes of the window it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) number: u32,
    pub(super) from: usize,
    pub(super) to: usize,
}

/// Joins the windows of a text, which come in order, and gives out numbers as they become certain.
#[derive(Default)]
pub(super) struct Joiner {
    /// The last window, and its first token that was not given out.
    held: Option<(Window, Vec<Token>, usize)>,
}

impl Joiner {
    /// Takes a window with its tokens. Where it cannot be joined to the one before, `encode` is asked for the tokens of both as
    /// one, as long as they are no longer than `most` bytes.
    pub(super) fn push<E>(
        &mut self,
        window: Window,
        tokens: Vec<Token>,
        most: usize,
        encode: &dyn Fn(&str) -> Result<Vec<Token>, E>,
        numbers: &mut Vec<u32>,
    ) -> Result<(), E> {
        let (mut window, mut tokens, mut first) = (window, tokens, 0);
        if let Some((before, known, given)) = self.held.take() {
            // Where this window begins in the one before.
            let shift = before.next - window.joint;
            if let Some((end, start)) = meeting(&before, &known, given, &window, &tokens) {
                give(&known[given..end], numbers);
                first = start;
            } else if before.text.len() + window.text.len() <= most {
                let place = known.get(given).map_or(before.next, |token| token.from);
                window.text = before.text[..shift].to_owned() + &window.text;
                window.next += shift;
                window.joint = before.joint;
                tokens = encode(&window.text)?;
                first = if given == 0 { 0 } else { tokens.partition_point(|token| token.from < place) };
            } else {
                // No two ways to cut it agree, however much is looked at.
                give(
                    &known[given..known.partition_point(|token| token.from < before.next).max(given)],
                    numbers,
                );
                first = tokens.partition_point(|token| token.from < window.joint);
            }
        }
        if window.ends {
            give(&tokens[first..], numbers);
        } else {
            self.held = Some((window, tokens, first));
        }
        Ok(())
    }
}

fn give(tokens: &[Token], numbers: &mut Vec<u32>) {
    numbers.extend(tokens.iter().map(|token| token.number));
}

/// The places in the tokens of both windows where the second takes over: nearest to where they should be joined.
fn meeting(
    before: &Window,
    known: &[Token],
    given: usize,
    window: &Window,
    tokens: &[Token],
) -> Option<(usize, usize)> {
    let shift = before.next - window.joint;
    // The ends of both windows are less certain than what lies between.
    let margin = (before.text.len() - before.next) / 2;
    let (low, high) = (shift + window.joint.min(margin), before.text.len() - margin);
    let place = |at: usize| known[at].from;
    let same = |one: &Token, other: &Token| {
        (one.number, one.from, one.to) == (other.number, other.from + shift, other.to + shift)
    };
    let inner = known.partition_point(|token| token.from < low).max(given + 1);
    let outer = known.partition_point(|token| token.from <= high);
    let mut ends: Vec<usize> =
        (inner..outer).filter(|at| known[at - 1].to <= place(*at) && place(*at) > 0).collect();
    ends.sort_by_key(|at| place(*at).abs_diff(before.next));
    ends.into_iter().find_map(|end| {
        let start = tokens.partition_point(|token| token.from + shift < place(end));
        let (last, next) = (tokens.get(start.checked_sub(1)?)?, tokens.get(start)?);
        (same(&known[end - 1], last) && same(&known[end], next)).then_some((end, start))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(text: &str, most: usize) -> Vec<Window> {
        let (mut cutter, mut windows) = (Cutter::new(most), Vec::new());
        // A text comes in pieces of any length.
        text.split_inclusive(' ').for_each(|piece| cutter.push(piece, false, &mut windows));
        cutter.push("", true, &mut windows);
        windows
    }

    #[test]
    fn windows_are_the_text_and_share_what_lies_around_their_joints() {
        for text in [
            "one\ntwo three four five six",
            "\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}",
            " a b c d e f g h i j",
            "",
            "x",
        ] {
            for most in 1..30 {
                let windows = windows(text, most);
                let own: String =
                    windows.iter().map(|window| &window.text[window.joint..window.next]).collect();
                assert_eq!(own, text, "{most}");
                assert!(
                    windows.iter().rev().skip(1).all(|window| !window.ends)
                        && windows[windows.len() - 1].ends
                );
                for pair in windows.windows(2) {
                    let shift = pair[0].next - pair[1].joint;
                    assert!(pair[1].text.starts_with(&pair[0].text[shift..]), "{pair:?}");
                }
            }
        }
    }

    #[test]
    fn cuts_lie_where_tokens_end_whatever_the_rules_are() {
        assert_eq!(cut("one\ntwo three", 6), 4);
        assert_eq!(cut("one\n  two three", 9), 9, "an indented line is no beginning");
        assert_eq!(cut("one two  three", 9), 7);
        assert_eq!(cut("\u{e4}\u{e4}\u{e4}", 5), 4);
        assert_eq!(cut("\u{e4}\u{e4}", 1), 2);
    }

    /// Tokens of two letters, counted from the beginning of each run of letters, and a space before whatever it gets.
    fn pairs(text: &str) -> Vec<Token> {
        let mut tokens = vec![Token { number: 0, from: 0, to: 0 }];
        let mut run = 0;
        for (at, letter) in text.bytes().enumerate() {
            run = if letter == b' ' { 0 } else { run + 1 };
            match tokens.last_mut() {
                Some(last) if run > 0 && run % 2 == 0 => {
                    (last.number, last.to) = (1000 + u32::from(letter), at + 1)
                }
                _ => tokens.push(Token { number: u32::from(letter), from: at, to: at + 1 }),
            }
        }
        tokens
    }

    fn joined(text: &str, most: usize, together: usize) -> Vec<u32> {
        let (mut joiner, mut numbers) = (Joiner::default(), Vec::new());
        let encode = |text: &str| Ok::<_, ()>(pairs(text));
        for window in windows(text, most) {
            let tokens = pairs(&window.text);
            joiner.push(window, tokens, together, &encode, &mut numbers).unwrap();
        }
        numbers
    }

    #[test]
    fn joined_windows_have_the_numbers_of_the_whole_text() {
        let text: String =
            (0..400).map(|word| "abcdefg".repeat(3)[..word % 19 + 1].to_owned() + " ").collect();
        let whole: Vec<u32> = pairs(&text).iter().map(|token| token.number).collect();
        for most in [64, 100, 101, 333, 10_000] {
            assert!(joined(&text, most, 1000) == whole, "{most}");
        }
        // One word of odd length after the other, in which only the beginning says where pairs begin.
        let text = "x".repeat(301) + " " + &"y".repeat(300);
        let whole: Vec<u32> = pairs(&text).iter().map(|token| token.number).collect();
        for most in [50, 51, 97] {
            assert_eq!(joined(&text, most, 10_000), whole, "{most}");
        }
        // Where that is not looked for, nothing is lost.
        let cut = joined(&text, 51, 100);
        assert!(cut.len() >= whole.len() && cut.len() < whole.len() + 40, "{} {}", cut.len(), whole.len());
    }
}
