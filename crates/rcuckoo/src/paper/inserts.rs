//! Inserts as printed: they lock only the rows of their path.

use guira_fabric::Lane;

use crate::change::{Change, Changed, Outcome, Task};
use crate::{Client, ErrorKind};

impl Client {
    /// Carries out `task` as printed: updates and deletes lock both rows, inserts only the rows of their path.
    // [R-LOCK-7]
    pub(crate) async fn change_as_printed(
        &mut self,
        lane: &mut dyn Lane,
        task: Task<'_>,
    ) -> Result<Option<Changed>, ErrorKind> {
        let both = [task.pair.first, task.pair.second];
        let update;
        let begun = match task.change {
            Change::Insert(_) => None,
            // The paper has no such operation: same as in the other presets.
            Change::Add(_) => return self.attempts(lane, task, &both).await,
            Change::Put(value) => {
                update = Change::Update(*value);
                Some(&update)
            }
            Change::Update(_) | Change::Remove | Change::Swap(..) | Change::RemoveIf(_) => Some(task.change),
        };
        if let Some(change) = begun {
            let changed = self.attempts(lane, Task { change, ..task }, &both).await?;
            let is_missing = changed.is_some_and(|changed| changed.outcome == Outcome::Missing);
            if !(task.change.inserts() && is_missing) {
                return Ok(changed);
            }
        }
        self.attempts(lane, task, &[]).await
    }
}
