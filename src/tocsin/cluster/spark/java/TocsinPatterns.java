import org.apache.hadoop.shaded.com.google.re2j.Pattern;
import org.apache.spark.TaskContext;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Matches texts with patterns that a query takes from its rows, for example from a subscription, in bounded time.
 *
 * Java's regular expressions backtrack: ten times `(.*)` and a text of 150 letters take years, and nothing interrupts
 * them. RE2 takes time that is proportional to the length of the text times that of the pattern, and has no look-around
 * and no references to groups. Limits of both lengths bound the time of one match to a fraction of a second. If Spark has
 * cancelled the task, the next match ends it.
 */
public final class TocsinPatterns {
    private static final int MOST_CHARACTERS = 1000;
    /** Of a pattern whose counted repetitions are written out: `(ab){3}` counts as `ababab`. */
    private static final long MOST_WRITTEN_OUT = 2000;
    private static final long MOST_STEPS = 20000000;
    /** A longer pattern is compiled for every match: the kept ones of each thread take a few MiB at most. */
    private static final int MOST_KEPT_CHARACTERS = 200;
    private static final int MOST_KEPT = 1000;
    private static final java.util.regex.Pattern COUNTS = java.util.regex.Pattern.compile("\\{(\\d+)(?:,(\\d*))?\\}");
    private static final ThreadLocal KEPT = new ThreadLocal();

    private final Pattern pattern;
    private final long writtenOut;

    private TocsinPatterns(String pattern) {
        if (pattern.length() > MOST_CHARACTERS) {
            throw new IllegalArgumentException("a pattern may have " + MOST_CHARACTERS + " characters, this one has "
                + pattern.length() + ": shorten it");
        }
        writtenOut = writtenOut(pattern);
        if (writtenOut > MOST_WRITTEN_OUT) {
            throw new IllegalArgumentException("the pattern " + pattern + " repeats its parts too often: "
                + "use * or + instead of large counts");
        }
        try {
            this.pattern = Pattern.compile(pattern);
        } catch (RuntimeException error) {
            throw new IllegalArgumentException("the pattern " + pattern + " is not valid in RE2 syntax: "
                + error.getMessage());
        }
    }

    /** At least the length of the pattern with all counted repetitions written out. The count of a group multiplies. */
    private static long writtenOut(String pattern) {
        long length = Math.max(1, pattern.length());
        long times = 1;
        java.util.regex.Matcher counts = COUNTS.matcher(pattern);
        while (counts.find() && length * times <= MOST_WRITTEN_OUT) {
            long count = Math.max(1, Math.max(count(counts.group(1)), count(counts.group(2))));
            boolean isOfCharacter = counts.start() > 0 && ")}*+?".indexOf(pattern.charAt(counts.start() - 1)) < 0;
            if (isOfCharacter) length += count;
            else times *= count;
        }
        return length * times;
    }

    private static long count(String digits) {
        if (digits == null || digits.isEmpty()) return 0;
        return digits.length() > 6 ? MOST_WRITTEN_OUT : Long.parseLong(digits);
    }

    private static TocsinPatterns of(String pattern) {
        if (pattern.length() > MOST_KEPT_CHARACTERS) return new TocsinPatterns(pattern);
        java.util.HashMap kept = (java.util.HashMap) KEPT.get();
        if (kept == null || kept.size() >= MOST_KEPT) {
            kept = new java.util.HashMap();
            KEPT.set(kept);
        }
        TocsinPatterns found = (TocsinPatterns) kept.get(pattern);
        if (found == null) {
            found = new TocsinPatterns(pattern);
            if (found.writtenOut <= MOST_KEPT_CHARACTERS) kept.put(pattern, found);
        }
        return found;
    }

    /** `text RLIKE pattern`. */
    public static boolean find(UTF8String text, UTF8String pattern) {
        endIfCancelled();
        TocsinPatterns compiled = of(pattern.toString());
        String searched = text.toString();
        checkSteps(searched.length(), compiled.writtenOut);
        return compiled.pattern.matcher(searched).find();
    }

    /** `text LIKE pattern ESCAPE escape`. */
    public static boolean like(UTF8String text, UTF8String pattern, UTF8String escape) {
        endIfCancelled();
        int[] wanted = pattern.toString().codePoints().toArray();
        int[] searched = text.toString().codePoints().toArray();
        checkSteps(searched.length, wanted.length);
        int count = 0;
        int[] kinds = new int[wanted.length];
        int sign = escape.toString().codePointAt(0);
        for (int i = 0; i < wanted.length; i++) {
            int kind = wanted[i] == '%' ? ANY_TEXT : wanted[i] == '_' ? ANY_CHARACTER : wanted[i];
            if (wanted[i] == sign) {
                i++;
                if (i == wanted.length || wanted[i] != '_' && wanted[i] != '%' && wanted[i] != sign) {
                    throw new IllegalArgumentException("the pattern " + pattern + " of LIKE is not valid: after "
                        + escape + " comes _, % or " + escape);
                }
                kind = wanted[i];
            }
            kinds[count++] = kind;
        }
        return like(searched, kinds, count);
    }

    private static final int ANY_TEXT = -1;
    private static final int ANY_CHARACTER = -2;

    /** After a mismatch, only the last `%` takes one more character: an earlier one need not take more than it has. */
    private static boolean like(int[] text, int[] kinds, int count) {
        int next = 0;
        int kind = 0;
        int lastAnyText = -1;
        int taken = 0;
        while (next < text.length) {
            if (kind < count && kinds[kind] == ANY_TEXT) {
                lastAnyText = kind++;
                taken = next;
            } else if (kind < count && (kinds[kind] == ANY_CHARACTER || kinds[kind] == text[next])) {
                kind++;
                next++;
            } else if (lastAnyText >= 0) {
                kind = lastAnyText + 1;
                next = ++taken;
            } else {
                return false;
            }
        }
        while (kind < count && kinds[kind] == ANY_TEXT) kind++;
        return kind == count;
    }

    private static void checkSteps(long textLength, long patternLength) {
        if (textLength * patternLength > MOST_STEPS) {
            throw new IllegalArgumentException("a pattern of length " + patternLength + " is too long for a text of "
                + textLength + " characters: shorten it");
        }
    }

    private static void endIfCancelled() {
        TaskContext context = TaskContext.get();
        if (context != null) context.killTaskIfInterrupted();
    }
}
