//! Runs that take turns, so that whatever else the machine does meets all binaries alike.

use crate::samples::Samples;
use crate::subject::Subject;

/// Measures every binary once a round, each round beginning with the next one; the round before the first counts for nothing,
/// since it reads the files. `measure` gives the same `ROWS` numbers of each. Returns for each row what each binary gave.
pub async fn rounds<const ROWS: usize>(
    what: &str,
    subjects: &[Subject],
    times: usize,
    measure: impl AsyncFn(&Subject) -> [f64; ROWS],
) -> [Vec<Samples>; ROWS] {
    let mut values = vec![vec![Vec::new(); subjects.len()]; ROWS];
    for round in 0..=times {
        eprint!("\r{what}: {round}/{times} ");
        for index in turn(round, subjects.len()) {
            let measured = measure(&subjects[index]).await;
            if round > 0 {
                for (row, value) in measured.into_iter().enumerate() {
                    values[row][index].push(value);
                }
            }
        }
    }
    eprintln!();
    let mut rows = values.into_iter();
    std::array::from_fn(|_| {
        let row = rows.next().unwrap();
        row.into_iter().map(Samples::new).collect()
    })
}

/// The order of a round.
pub fn turn(round: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |place| (place + round) % count)
}
