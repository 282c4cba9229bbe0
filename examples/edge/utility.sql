-- The utility's side of the edge tier, for the data cluster: datasets for the results of meters.sql, and channels.

CREATE STREAM DATASET UserUse (meter STRING, since TIMESTAMP, mean DOUBLE, total DOUBLE, readings BIGINT)
  KEY (meter, since) RETAIN 1 DAYS;

CREATE STREAM DATASET NeighbourhoodUse (
  neighbourhood STRING, since TIMESTAMP, mean DOUBLE, total DOUBLE, readings BIGINT
) KEY (neighbourhood, since) RETAIN 1 DAYS;

CREATE STREAM DATASET DistrictUse (district STRING, since TIMESTAMP, mean DOUBLE, total DOUBLE, readings BIGINT)
  KEY (district, since) RETAIN 1 DAYS;

-- Alerts about users with a high consumption.
CREATE CONTINUOUS CHANNEL HighUse (above DOUBLE) AS
  SELECT u.meter, u.since, u.mean, u.total, u.readings FROM NEW UserUse u WHERE u.mean > :above;

-- The use of areas.
CREATE CONTINUOUS CHANNEL NeighbourhoodsAbove (above DOUBLE) AS
  SELECT n.neighbourhood, n.since, n.mean, n.total, n.readings FROM NEW NeighbourhoodUse n WHERE n.mean > :above;

CREATE CONTINUOUS CHANNEL DistrictsAbove (above DOUBLE) AS
  SELECT d.district, d.since, d.mean, d.total, d.readings FROM NEW DistrictUse d WHERE d.mean > :above;
