-- One dataset and one channel. A subscriber to a topic gets its news within one or two seconds.
CREATE STREAM DATASET News (id STRING, topic STRING, headline STRING) KEY (id) RETAIN 1 DAYS;

CREATE CONTINUOUS CHANNEL NewsAbout (topic STRING) AS
  SELECT n.id, n.headline FROM NEW News n WHERE n.topic = :topic;
