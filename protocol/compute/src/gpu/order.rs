//! Which rows are which token's: embeddings add them token by token, each token's in order (ARITH-44, ARITH-66).

/// Some rows by token.
pub(super) struct Order {
    /// Rows by token, each token's ascending.
    pub by_token: Vec<i32>,
    /// Where each token's rows begin; at last where all end.
    pub starts: Vec<i32>,
    /// Tokens that occur, ascending.
    pub names: Vec<i32>,
}

impl Order {
    /// Of rows that have these tokens.
    pub(super) fn of(tokens: &[i32]) -> Self {
        let mut by_token: Vec<i32> = (0..tokens.len() as i32).collect();
        by_token.sort_by_key(|row| tokens[*row as usize]);
        let (mut names, mut starts): (Vec<i32>, Vec<i32>) = (Vec::new(), Vec::new());
        for (index, row) in by_token.iter().enumerate() {
            let token = tokens[*row as usize];
            if names.last() != Some(&token) {
                names.push(token);
                starts.push(index as i32);
            }
        }
        starts.push(by_token.len() as i32);
        Self { by_token, starts, names }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_named_by_token_and_ascend() {
        let Order { by_token, starts, names } = Order::of(&[7, 2, 7, 0, 2, 7]);
        assert_eq!((by_token, starts, names), (vec![3, 1, 4, 0, 2, 5], vec![0, 1, 3, 6], vec![0, 2, 7]));
    }
}
