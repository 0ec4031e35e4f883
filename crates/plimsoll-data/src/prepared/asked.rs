//! What is asked of [`Sources`] where they may be prepared data.

use super::fit::Fit;
use super::words::TokenRows;
use crate::{DataError, Recipe, Sources, TextTokenizer};

impl Sources {
    /// These are prepared data: tokens, without texts.
    pub fn is_prepared(&self) -> bool {
        self.prepared().is_some()
    }

    /// Says whether a loader with this tokenizer and recipe can make samples of these lengths of them: of files it always can, of
    /// prepared data where they were made so.
    pub fn check_fit(&self, tokenizer: &TextTokenizer, recipe: &Recipe, lengths: [usize; 2]) -> Result<(), DataError> {
        self.fit(tokenizer, recipe, lengths).map(drop)
    }

    /// Reads the first block of prepared data and copies its tokens, at most `most` of a row, as a loader's thread does; how many there
    /// are. For measuring.
    pub fn copy_first_block(&self, most: usize) -> Result<usize, DataError> {
        let Some(prepared) = self.prepared() else { return Ok(0) };
        let mut rows = TokenRows::with_room(prepared.form(), 0, 0);
        prepared.read_block(0, self.blocks()[0], &mut rows)?;
        let (mut out, mut tokens) = (Vec::new(), 0);
        for row in 0..rows.len() {
            for side in rows.row(row) {
                out.clear();
                side.copy(0, side.len().min(most), &mut out);
                tokens += out.len();
            }
        }
        Ok(tokens)
    }

    /// How prepared rows are cut to these lengths.
    pub(crate) fn fit(
        &self,
        tokenizer: &TextTokenizer,
        recipe: &Recipe,
        lengths: [usize; 2],
    ) -> Result<Option<Fit>, DataError> {
        self.prepared().map(|prepared| prepared.fit(tokenizer, recipe, lengths)).transpose()
    }
}
