//! The steps of a pull or a build, as the daemon tells them: a line of JSON for each.

use serde::Deserialize;

use crate::cli::client::http::next_chunk;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::bar;
use crate::protocol::api::ImageView;
use crate::protocol::problem::Problem;
use hyper::Response;
use hyper::body::Incoming;

/// Longest line.
const LINE_BYTES: usize = 1024 * 1024;

/// A line of the answer.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StepLine {
    status: Option<String>,
    done: bool,
    image: Option<ImageView>,
    problem: Option<Problem>,
}

/// Shows the steps until the work is done, and gives the image, if the work made one.
pub async fn show(
    context: &mut Context,
    mut response: Response<Incoming>,
) -> Result<Option<ImageView>, Failure> {
    let mut rest = Vec::new();
    while let Some(chunk) = next_chunk(response.body_mut()).await? {
        rest.extend_from_slice(&chunk);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            if let Some(last) = show_line(context, &String::from_utf8_lossy(&line))? {
                context.screen.progress("")?;
                return Ok(last.image);
            }
        }
        if rest.len() > LINE_BYTES {
            return Err(Failure::new("the daemon's answer makes no sense: a line without an end"));
        }
    }
    Err(Failure::new("the daemon ended its answer before the image was there")
        .hint("it may have ended; what it had begun is removed by the next one"))
}

/// Adds a bar to a layer that reports its progress: `…: Downloading 12 of 50 KiB`.
fn with_bar(status: &str) -> String {
    let amount = status.strip_suffix(" KiB").and_then(|text| {
        let (before, total) = text.rsplit_once(" of ")?;
        Some((before.rsplit(' ').next()?.parse().ok()?, total.parse().ok()?))
    });
    amount.map_or_else(|| status.to_owned(), |(done, total)| format!("{} {status}", bar(done, total)))
}

/// The line, if it was the last.
fn show_line(context: &mut Context, line: &str) -> Result<Option<StepLine>, Failure> {
    let line = line.trim();
    if line.is_empty() {
        return Ok(None);
    }
    let mut parsed: StepLine = serde_json::from_str(line)
        .map_err(|e| Failure::new(format!("the daemon's answer makes no sense: {e}")))?;
    if let Some(problem) = parsed.problem {
        context.screen.progress("")?;
        return Err(problem.into());
    }
    if context.json {
        context.screen.line(line)?;
    } else if let Some(status) = parsed.status.take() {
        if context.screen.is_watched() {
            context.screen.progress(&with_bar(&status))?;
        } else {
            context.screen.note(&status)?;
        }
    }
    Ok(parsed.done.then_some(parsed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_has_a_bar() {
        assert_eq!(
            with_bar("a1b2: Downloading 5 of 10 KiB"),
            "[##########----------] a1b2: Downloading 5 of 10 KiB"
        );
        for plain in ["Pulling from x", "a: Extracting 0 of 0 KiB of", "a of b KiB"] {
            assert_eq!(with_bar(plain), plain);
        }
    }
}
