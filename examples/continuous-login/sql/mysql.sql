-- The same question for MySQL 8.0, where days are subtracted as an interval.
CREATE TABLE user_login (
    user_id    varchar(32) NOT NULL,
    login_time datetime    NOT NULL
);

WITH login_days AS (
    SELECT DISTINCT user_id, DATE(login_time) AS day
    FROM user_login
), ranked AS (
    SELECT user_id, day,
           ROW_NUMBER() OVER (PARTITION BY user_id ORDER BY day) AS nth
    FROM login_days
), keyed AS (
    SELECT user_id, day, DATE_SUB(day, INTERVAL nth DAY) AS run
    FROM ranked
)
SELECT user_id, MIN(day) AS first_day, MAX(day) AS last_day, COUNT(*) AS days
FROM keyed
GROUP BY user_id, run
HAVING COUNT(*) >= 3
ORDER BY user_id, first_day;
