//! What a volunteer is told of its row of experts, once it is known.

use muster_core::ids::{Row, ShardId};
use muster_core::layout::Layout;
use muster_core::manifest::Model;
use muster_core::messages::offer::StateVector;

/// What is known of a node's row.
pub(super) struct OwnRow<'a> {
    pub(super) model: &'a Model,
    pub(super) layout: &'a Layout,
    pub(super) row: Row,
    /// Whether trunk and row still have to be fetched.
    pub(super) fetched: bool,
}

impl OwnRow<'_> {
    /// One line each: which row, its share of the model, and what is fetched for it.
    pub(super) fn lines(&self) -> [String; 3] {
        let Self { model, row, .. } = *self;
        let (held, all) = (model.parameters(), model.all_parameters());
        let share = 100.0 * held as f64 / all as f64;
        let last = model.rows().saturating_sub(1);
        let fetch = if self.fetched {
            format!("to be fetched for it: trunk and row, {} bytes", self.bytes())
        } else {
            "nothing has to be fetched for it: trunk and row are here".into()
        };
        [
            format!("your row of experts is row {row} of rows 0 to {last}"),
            format!("with the trunk it has {held} of the model's {all} parameters, {share:.1} %"),
            fetch,
        ]
    }

    /// Bytes of a state of trunk and row: exponents, parameters and moments.
    fn bytes(&self) -> usize {
        let bytes = |shard: ShardId| {
            let size = self.layout.shard(shard)?.size();
            let vectors = [StateVector::Parameters, StateVector::First, StateVector::Second];
            let values: usize = vectors.iter().map(|vector| size.coefficients * vector.value_bytes()).sum();
            Some(values + size.exponents * StateVector::Exponents.value_bytes())
        };
        self.layout.path(self.row).filter_map(bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use muster_organise::config::Settings;

    use super::*;

    #[test]
    fn a_volunteer_is_told_its_row_its_share_and_what_it_fetches() {
        let text = "[model]\nfamily = \"mixture\"\nwidth = 4\nheads = 2\nkey_value_heads = 2\nhidden = 3\nlayers = 1\n\
                    [experts]\ncolumns = 5\nactive = 2\nshared_hidden = 6\nrows = 4\n";
        let model = Settings::parse("run.toml".as_ref(), text).unwrap().checked_model().unwrap();
        let layout = Layout::of(&model);
        let told = |fetched| OwnRow { model: &model, layout: &layout, row: Row(3), fetched }.lines();
        // The row: its router and experts.
        let row = 5 * 4 + 5 * 36;
        let (held, all) = (layout.parameters(), layout.parameters() + 3 * row);
        let share = 100.0 * held as f64 / all as f64;
        let bytes = 12 * held + 2 * layout.tensors().len();
        let lines = told(true);
        assert_eq!(lines[0], "your row of experts is row 3 of rows 0 to 3");
        assert_eq!(
            lines[1],
            format!("with the trunk it has {held} of the model's {all} parameters, {share:.1} %")
        );
        assert_eq!(lines[2], format!("to be fetched for it: trunk and row, {bytes} bytes"));
        assert!(told(false)[2].starts_with("nothing has to be fetched"));
    }
}
