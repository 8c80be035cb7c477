//! A tokeniser made from a text: pairs of bytes that are often side by side become one token (byte-level BPE).

use std::sync::mpsc::sync_channel;
use std::thread;

use muster_replica::exit::{Failure, Outcome};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

/// What ends a text in the numbers of such a tokeniser: token 0.
pub const END: &str = "<|endoftext|>";
/// Numbers that one may have: the bytes, the end, and some pairs at least; at most what takes two bytes a token.
pub const LEARNT_TOKENS: core::ops::RangeInclusive<i64> = 300..=65536;
/// Bytes of a token at most: what is longer is a line of dashes.
const LONGEST: usize = 64;
/// Pieces of text that wait to be learnt from.
const WAITING: usize = 16;

/// The `tokenizer.json` with so many numbers, or fewer where the text has no more pairs that occur twice. `texts` gives pieces of
/// text to the function that it gets, and stops where that says so.
///
/// # Errors
/// As `texts`; [`Failure`] when the library cannot make one.
pub fn learn(
    tokens: u32,
    texts: impl FnOnce(&mut dyn FnMut(String) -> bool) -> Outcome<()>,
) -> Outcome<Vec<u8>> {
    let (give, take) = sync_channel::<String>(WAITING);
    let (read, learnt) = thread::scope(|scope| {
        let learner = scope.spawn(move || learn_from(tokens, take.into_iter()));
        let read = texts(&mut |text| give.send(text).is_ok());
        drop(give);
        (read, learner.join())
    });
    read?;
    let failed = |what: String| {
        Failure::environment(format!(
            "no tokeniser can be made of this text ({what}); use one of a model with --tokenizer"
        ))
    };
    learnt.map_err(|_| failed("the library failed".into()))?.map_err(|error| failed(error.to_string()))
}

fn learn_from(tokens: u32, texts: impl Iterator<Item = String> + Send) -> tokenizers::Result<Vec<u8>> {
    let mut rules = Tokenizer::new(BPE::default());
    rules.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    rules.with_decoder(Some(ByteLevel::new(false, true, true)));
    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(tokens as usize)
        .min_frequency(2)
        .max_token_length(Some(LONGEST))
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(vec![AddedToken::from(END, true)]);
    rules.train(&mut TrainerWrapper::from(trainer.build()), texts)?;
    Ok(rules.to_string(false)?.into_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::LoadedTokeniser;
    use super::*;

    #[test]
    fn a_text_gives_one_tokeniser_that_reads_any_text() {
        let text = "Bread and butter, and bread and jam.\n".repeat(50);
        let learnt = || {
            learn(300, |give| {
                assert!(text.split_inclusive('\n').all(|line| give(line.to_owned())));
                Ok(())
            })
        };
        let file = learnt().unwrap();
        assert_eq!(file, learnt().unwrap(), "the same text gives the same tokeniser");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokenizer.json");
        fs::write(&path, &file).unwrap();
        let rules = LoadedTokeniser::open(&path).unwrap().with_words_as_text(true);
        // 256 bytes, the end, and what is frequent: fewer than wanted, for no other pair occurs twice.
        assert!((270..=300).contains(&rules.tokens()), "{}", rules.tokens());
        let bread = rules.encode(" bread").unwrap();
        assert!(bread.len() == 1 && bread[0] > 256, "{bread:?}");
        for other in ["bread", "\u{1f600} \u{e4}\r\n\u{0}", END, "  \t x", "\u{4e2d}\u{6587}"] {
            let numbers = rules.encode(other).unwrap();
            assert!(!numbers.contains(&0), "{other}");
            assert_eq!(rules.decode(&numbers), other);
        }
        assert_eq!(rules.with_words_as_text(false).encode(END).unwrap(), [0]);
    }

    #[test]
    fn what_is_wrong_with_a_text_is_said() {
        let failure = learn(300, |_| Err(Failure::usage("no text"))).unwrap_err();
        assert_eq!(failure.message, "no text");
    }
}
