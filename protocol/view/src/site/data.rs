//! The same as JSON, for programs: lists are cut by `from` and `count`.

use serde::Serialize;
use serde_json::{Value, json};

use super::{Purpose, Site};

/// Most rows of one answer, and how many without being asked.
const MOST: usize = 1_000;
const USUAL: usize = 100;

impl Site {
    /// The answer to `api/NAME`; none where there is no such list.
    pub(super) fn data(&self, name: &str, query: &str) -> Option<String> {
        let story = self.view().story();
        let slice = if self.purpose == Purpose::Files { Slice::ALL } else { Slice::of(query) };
        let value = match name {
            "run.json" => {
                let baselines = story.baselines.map(|b| json!({ "unigram": b.unigram, "bigram": b.bigram }));
                json!({
                    "run": format!("{:#}", self.view().manifest.run()),
                    "name": &*self.view().manifest.name,
                    "records": story.records,
                    "known": story.known,
                    "stage": story.stage,
                    "closed": story.closed,
                    "state": story.state,
                    "rounds": story.rounds.len(),
                    "of_rounds": self.view().manifest.training.rounds,
                    "members": story.members.len(),
                    "audits": story.audits.lines().len(),
                    "bans": story.bans.len(),
                    "held_out": story.held_out,
                    "baselines": baselines,
                    "duties": story.duties,
                    "broken": story.broken,
                })
            }
            "rounds.json" => slice.of_all(story.rounds.len(), |place| &story.rounds[place]),
            "members.json" => slice.of_all(story.members.len(), |place| &story.members[place]),
            "audits.json" => {
                let audits = story.audits.lines();
                slice.of_all(audits.len(), |place| &audits[place])
            }
            "bans.json" => slice.of_all(story.bans.len(), |place| &story.bans[place]),
            _ => return None,
        };
        Some(value.to_string())
    }
}

/// Which rows are asked for.
struct Slice {
    from: usize,
    count: usize,
}

impl Slice {
    /// Files are read as a whole.
    const ALL: Self = Self { from: 0, count: usize::MAX };

    fn of(query: &str) -> Self {
        let number = |name: &str| {
            let values = query.split('&').filter_map(|pair| pair.split_once('='));
            values.filter(|(key, _)| *key == name).find_map(|(_, value)| value.parse().ok())
        };
        Self { from: number("from").unwrap_or(0), count: number("count").unwrap_or(USUAL).min(MOST) }
    }

    fn of_all<'a, T: Serialize + 'a>(&self, all: usize, row: impl Fn(usize) -> &'a T) -> Value {
        let rows: Vec<Value> = (self.from.min(all)..self.from.saturating_add(self.count).min(all))
            .map(|place| serde_json::to_value(row(place)).unwrap_or_default())
            .collect();
        json!({ "from": self.from, "all": all, "rows": rows })
    }
}
