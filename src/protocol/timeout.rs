//! How long a cell may run: the one rule for what a request, a job or a model may ask for.

use std::time::Duration;

use super::problem::{Code, Problem};

/// The time that a cell gets where nothing else is asked for, and the most that may be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub default: Duration,
    pub most: Duration,
}

impl Timeouts {
    /// For people and programs: an impossible timeout is refused with an explanation.
    pub fn checked(self, wanted_s: Option<f64>) -> Result<Duration, Problem> {
        let Some(seconds) = wanted_s else { return Ok(self.default.min(self.most)) };
        let wanted = Duration::try_from_secs_f64(seconds).ok();
        wanted.filter(|wanted| !wanted.is_zero() && *wanted <= self.most).ok_or_else(|| {
            let most = self.most.as_secs();
            Problem::new(Code::BadRequest, format!("a timeout of {seconds} s is not possible"))
                .hint(format!("use more than 0 and at most {most} s (`cells.max_timeout`)"))
        })
    }

    /// For models, which a refusal would cost a request: too long a time becomes the most, an invalid one the default.
    pub fn nearest(self, wanted_s: Option<f64>) -> Duration {
        let wanted = wanted_s.filter(|seconds| seconds.is_finite() && *seconds > 0.0);
        let default = self.default.min(self.most);
        wanted.map_or(default, |seconds| {
            Duration::try_from_secs_f64(seconds).map_or(self.most, |time| time.min(self.most))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Timeouts = Timeouts { default: Duration::from_secs(30), most: Duration::from_secs(60) };

    #[test]
    fn people_are_told_and_models_get_what_is_nearest() {
        let cases = [
            (None, Some(30.0), 30.0),
            (Some(1.5), Some(1.5), 1.5),
            (Some(60.0), Some(60.0), 60.0),
            (Some(61.0), None, 60.0),
            (Some(1e300), None, 60.0),
            (Some(0.0), None, 30.0),
            (Some(-1.0), None, 30.0),
            (Some(f64::NAN), None, 30.0),
            (Some(f64::INFINITY), None, 30.0),
        ];
        for (wanted, checked, nearest) in cases {
            assert_eq!(RULE.checked(wanted).ok(), checked.map(Duration::from_secs_f64), "{wanted:?}");
            assert_eq!(RULE.nearest(wanted), Duration::from_secs_f64(nearest), "{wanted:?}");
        }
    }

    #[test]
    fn a_default_is_never_more_than_the_most() {
        let rule = Timeouts { default: Duration::from_secs(90), ..RULE };
        assert_eq!((rule.checked(None).unwrap(), rule.nearest(None)), (RULE.most, RULE.most));
    }
}
