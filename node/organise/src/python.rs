//! JSON as Python writes it.

/// What Python writes of floats that JSON has no numbers for.
const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// The same JSON with Python's words in quotes.
pub(crate) fn words_quoted(bytes: &[u8]) -> Vec<u8> {
    with_words(bytes, |word| format!("\"{word}\""))
}

/// The same JSON with `null` in the place of Python's words, as `pandas` writes what is missing.
pub(crate) fn words_null(bytes: &[u8]) -> Vec<u8> {
    with_words(bytes, |_| "null".into())
}

/// The same JSON with something else in the place of each of Python's words.
fn with_words(bytes: &[u8], instead: impl Fn(&str) -> String) -> Vec<u8> {
    let (mut out, mut rest, mut within) = (Vec::with_capacity(bytes.len()), bytes, false);
    while let [byte, ..] = rest {
        let word = WORDS.iter().find(|word| !within && rest.starts_with(word.as_bytes()));
        let taken = match (word, byte) {
            (Some(word), _) => {
                out.extend(instead(word).bytes());
                rest = &rest[word.len()..];
                continue;
            }
            // Of an escape, both bytes: the second may be a quotation mark.
            (None, b'\\') if within => rest.len().min(2),
            (None, b'"') => {
                within = !within;
                1
            }
            (None, _) => 1,
        };
        out.extend(&rest[..taken]);
        rest = &rest[taken..];
    }
    out
}
