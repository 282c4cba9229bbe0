-- Queries of the edge tier, for the root of a tree: `tocsin edge-apply meters.sql --root URL`.
--
-- Figure 3 of the thesis: the average consumption per end user, neighbourhood and district, and a filter for suspicious
-- values. The thesis states neither windows nor thresholds. Results go into datasets of the same names (utility.sql).

CREATE EDGE STREAM Readings (meter STRING, neighbourhood STRING, district STRING, ts TIMESTAMP, kwh DOUBLE) TIME ts;

CREATE EDGE QUERY UserUse LATENESS 500 MILLISECONDS AS
SELECT meter, window.start AS since, AVG(kwh) AS mean, SUM(kwh) AS total, COUNT(*) AS readings
FROM Readings GROUP BY meter, WINDOW(ts, '10 seconds') HAVING AVG(kwh) > 2.0;

CREATE EDGE QUERY NeighbourhoodUse LATENESS 500 MILLISECONDS AS
SELECT neighbourhood, window.start AS since, AVG(kwh) AS mean, SUM(kwh) AS total, COUNT(*) AS readings
FROM Readings GROUP BY neighbourhood, WINDOW(ts, '2 seconds') HAVING AVG(kwh) > 0.25;

CREATE EDGE QUERY DistrictUse LATENESS 500 MILLISECONDS AS
SELECT district, window.start AS since, AVG(kwh) AS mean, SUM(kwh) AS total, COUNT(*) AS readings
FROM Readings GROUP BY district, WINDOW(ts, '2 seconds') HAVING AVG(kwh) > 0.25;
