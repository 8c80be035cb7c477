//! Numbers of llama.cpp's families beside those of `tokenizers`.

use serde_json::json;
use tokenizers::Tokenizer;

use super::*;
use crate::export::words::visible;

/// A byte-level tokeniser in the way of GPT-2, with an end.
pub(crate) fn byte_level() -> String {
    let mut vocabulary: BTreeMap<String, u32> =
        (0..=u8::MAX).map(|byte| (visible(byte).to_string(), byte.into())).collect();
    for (number, word) in [(256, "he"), (257, "ll"), (258, "hell"), (259, "Ġhe")] {
        vocabulary.insert(word.into(), number);
    }
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let added = json!([{"id": 260, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true}]);
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": level, "post_processor": level, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary,
            "merges": ["h e", "l l", "he ll", "Ġ he"]},
    })
    .to_string()
}

/// A tokeniser in the way of Llama 2: words that BPE of SentencePiece makes of its merges.
fn sentence_piece() -> Value {
    let mut words: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into();
    words.extend((0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")));
    let joined = ["▁a", "ab", "ba", "▁ab", "▁▁", "aba", "abab", "▁▁▁"];
    words.extend(joined.map(str::to_owned));
    words.extend(["▁", "a", "b", "c", "é"].map(str::to_owned));
    let vocabulary: BTreeMap<String, usize> = words.iter().cloned().zip(0..).collect();
    let mut merges = Vec::new();
    for word in joined {
        for (place, _) in word.char_indices().skip(1) {
            let (left, right) = word.split_at(place);
            if vocabulary.contains_key(left) && vocabulary.contains_key(right) {
                merges.push(format!("{left} {right}"));
            }
        }
    }
    let special = |id: usize| {
        json!({"id": id, "content": words[id], "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [special(0), special(1), special(2)],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "vocab": vocabulary, "merges": merges},
    })
}

/// As llama.cpp reads a text by tokens and scores (`llm_tokenizer_spm_session`).
fn read(words: &GgufWords, text: &str) -> Vec<u32> {
    let number = |piece: &str| words.tokens.iter().position(|token| token.name == piece);
    let WordFamily::SentencePiece { space_before } = words.family else { panic!("another family") };
    let text = if space_before { format!(" {text}") } else { text.to_owned() };
    let mut pieces: Vec<String> = text.replace(' ', "▁").chars().map(String::from).collect();
    loop {
        let joined = pieces.windows(2).enumerate().filter_map(|(place, pair)| {
            let token = &words.tokens[number(&pair.concat())?];
            Some((place, token.score))
        });
        // Of equal scores the first.
        let best = joined.fold(None, |best: Option<(usize, f32)>, (place, score)| match best {
            Some((_, most)) if most >= score => best,
            _ => Some((place, score)),
        });
        let Some((place, _)) = best else { break };
        let right = pieces.remove(place + 1);
        pieces[place] += &right;
    }
    let numbers = pieces.iter().flat_map(|piece| match number(piece) {
        Some(number) => vec![number],
        None => piece.bytes().map(|byte| number(&format!("<0x{byte:02X}>")).unwrap()).collect(),
    });
    numbers.map(|number| number as u32).collect()
}

fn refused(file: &Value) -> String {
    words(file.to_string().as_bytes(), 300).err().expect("a refusal")
}

#[test]
fn byte_level_words_keep_their_numbers_and_merges() {
    let words = words(byte_level().as_bytes(), 262).unwrap();
    let WordFamily::ByteLevel { rules, merges } = &words.family else { panic!("another family") };
    assert_eq!((*rules, merges.last().unwrap().as_str()), ("trillion", "Ġ he"));
    let token = |number: usize| (words.tokens[number].name.as_str(), words.tokens[number].kind);
    assert_eq!((token(32), token(258)), (("Ġ", NORMAL), ("hell", NORMAL)));
    assert_eq!((token(260), token(261)), (("<|endoftext|>", CONTROL), ("<unused 261>", UNUSED)));
    assert_eq!((words.tokens.len(), words.unknown), (262, None));
}

#[test]
fn rules_are_told_by_what_cuts_a_text() {
    let level = |more: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": more});
    let split = |rule: &str| json!({"type": "Split", "pattern": {"Regex": rule}, "behavior": "Isolated", "invert": false});
    let sequence = |steps: Vec<Value>| json!({"type": "Sequence", "pretokenizers": steps});
    let digits = json!({"type": "Digits", "individual_digits": true});
    let plain = DEEPSEEK3.replace(r"\r", "\r").replace(r"\n", "\n");
    let deepseek = vec![split(r"\p{N}{1,3}"), split("[一-龥\u{3040}-ゟ゠-ヿ]+"), split(&plain), level(false)];
    for (cuts, whole, expected) in [
        (sequence(vec![digits, level(true)]), false, Some("smollm")),
        (sequence(vec![split(LLAMA3), level(false)]), true, Some("llama-bpe")),
        (sequence(vec![split(LLAMA3), level(false)]), false, Some("dbrx")),
        (sequence(vec![split(QWEN2), level(false)]), false, Some("qwen2")),
        (sequence(vec![split(QWEN2), level(false)]), true, None),
        (sequence(deepseek), false, Some("deepseek-v3")),
        (sequence(vec![split(r"\w+"), level(false)]), false, None),
        (json!({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}), false, None),
        (json!({"type": "Whitespace"}), false, None),
        (Value::Null, false, None),
    ] {
        let mut file: Value = serde_json::from_str(&byte_level()).unwrap();
        file["pre_tokenizer"] = cuts.clone();
        file["normalizer"] = json!({"type": "Sequence", "normalizers": [{"type": "NFC"}]});
        file["model"]["ignore_merges"] = whole.into();
        let found = match words(file.to_string().as_bytes(), 262).map(|words| words.family) {
            Ok(WordFamily::ByteLevel { rules, .. }) => Some(rules),
            Ok(WordFamily::SentencePiece { .. }) => panic!("another family"),
            Err(_) => None,
        };
        assert_eq!(found, expected, "{cuts}");
    }
}

#[test]
fn words_of_sentence_piece_are_joined_by_scores_as_by_merges() {
    let file = sentence_piece();
    let words = words(file.to_string().as_bytes(), 300).unwrap();
    assert_eq!((words.unknown, words.tokens[0].kind, words.tokens[2].kind), (Some(0), UNKNOWN, CONTROL));
    assert_eq!((words.tokens[3].kind, words.tokens[299].kind), (BYTE, UNUSED));
    let rules: Tokenizer = file.to_string().parse().unwrap();
    let mut state = 7u64;
    for length in (0..400).map(|number| number % 12) {
        let letters = (0..length).map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ['a', 'b', ' ', 'a', 'b', 'é', 'c', '€'][(state >> 61) as usize]
        });
        let text: String = letters.collect();
        if text.is_empty() {
            continue;
        }
        assert_eq!(read(&words, &text), rules.encode(text.as_str(), false).unwrap().get_ids(), "{text:?}");
    }
}

#[test]
fn what_llama_cpp_reads_otherwise_is_refused() {
    let change = |pointer: &str, value: Value| {
        let mut file = sentence_piece();
        *file.pointer_mut(pointer).expect("an entry") = value;
        refused(&file)
    };
    assert!(change("/normalizer", json!({"type": "Lowercase"})).contains("normalizer"));
    assert!(change("/pre_tokenizer", json!({"type": "Whitespace"})).contains("pre_tokenizer"));
    assert!(change("/model/type", json!("Unigram")).contains("no plain BPE"));
    assert!(change("/model/end_of_word_suffix", json!("</w>")).contains("no plain BPE"));
    assert!(refused(&json!({"model": {"type": "WordLevel", "vocab": {"a": 0}}})).contains("no BPE"));
    let mut file = sentence_piece();
    file["model"]["vocab"].as_object_mut().unwrap().remove("<0x41>");
    assert!(refused(&file).contains("<0x41>"));
    file["model"]["vocab"]["A"] = 290.into();
    assert!(words(file.to_string().as_bytes(), 300).is_ok(), "a sign of its own");
    // Its cuts are looked at one by one, and of each both parts.
    let mut file = sentence_piece();
    file["model"]["vocab"]["c".repeat(WORD_BYTES + 1)] = 291.into();
    assert!(refused(&file).contains("a word of more than 256 bytes"));
    // A merge that comes before one of an earlier word, and one that is missing: scores have no such order.
    let mut file = sentence_piece();
    let merges = file["model"]["merges"].as_array_mut().unwrap();
    let last = merges.pop().unwrap();
    assert!(refused(&file).contains("merges"));
    file["model"]["merges"].as_array_mut().unwrap().insert(0, last);
    assert!(refused(&file).contains("merges"));
    let metaspace = |split: bool| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": split});
    let mut file = sentence_piece();
    (file["normalizer"], file["pre_tokenizer"]) = (Value::Null, metaspace(true));
    assert!(refused(&file).contains("several spaces"));
    file["pre_tokenizer"] = metaspace(false);
    assert!(words(file.to_string().as_bytes(), 300).is_ok());
}
