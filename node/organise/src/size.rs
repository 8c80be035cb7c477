//! How large a model is, in words.

use muster_core::manifest::{Family, Mixture, Model};

/// Parameters of a checked model; of a mixture also how many of them each token uses, and of several rows what a node
/// holds.
pub fn parameters(model: &Model) -> String {
    let (all, held) = (model.all_parameters(), model.parameters());
    match &model.family {
        Family::Mixture(mixture) => {
            let used = held - unused(model, mixture);
            let sizes = format!("{all} parameters ({used} used by each token)");
            match mixture.rows {
                1 => sizes,
                rows => {
                    let share = 100.0 * held as f64 / all as f64;
                    format!("{sizes}; a node holds {held} of them ({share:.1} %), one of {rows} rows")
                }
            }
        }
        Family::Decoder(_) | Family::Variant(_) | Family::Albert(_) => format!("{all} parameters"),
    }
}

/// Parameters of the experts that a token does not pass.
fn unused(model: &Model, mixture: &Mixture) -> u64 {
    let expert = 3 * u64::from(model.width) * u64::from(model.hidden);
    u64::from(model.layers) * u64::from(mixture.columns.saturating_sub(mixture.active)) * expert
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[test]
    fn a_mixture_says_what_each_token_uses() {
        let model = |text: &str| Settings::parse("run.toml".as_ref(), text).unwrap().checked_model().unwrap();
        let sizes = "width = 4\nheads = 2\nkey_value_heads = 2\nhidden = 3\nlayers = 2\n";
        // A vocabulary of 256; a layer has 2 norms, 4 square matrices and the feed-forward.
        let around = 256 * 4 + 2 * (2 * 4 + 4 * 16) + 4;
        let decoder = parameters(&model(&format!("[model]\n{sizes}")));
        assert_eq!(decoder, format!("{} parameters", around + 2 * 36));
        let experts = "[experts]\ncolumns = 5\nactive = 2\nshared_hidden = 6\n";
        let mixture = parameters(&model(&format!("[model]\nfamily = \"mixture\"\n{sizes}{experts}")));
        // The shared expert with its gate and the router serve every token.
        let shared = around + 2 * (72 + 4 + 5 * 4);
        let expected = (shared + 2 * 5 * 36, shared + 2 * 2 * 36);
        assert_eq!(mixture, format!("{} parameters ({} used by each token)", expected.0, expected.1));
        let rows = parameters(&model(&format!("[model]\nfamily = \"mixture\"\n{sizes}{experts}rows = 3\n")));
        // Of a row: its experts and its router, twice more.
        let all = expected.0 + 2 * 2 * (5 * 36 + 5 * 4);
        assert!(rows.starts_with(&format!("{all} parameters")), "{rows}");
        assert!(rows.contains(&format!("a node holds {} of them", expected.0)), "{rows}");
    }
}
